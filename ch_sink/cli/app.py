"""The commands and their common frame: exit codes, errors without traceback, ``--debug``."""

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

import ch_sink
from ch_sink.cli.check import check
from ch_sink.cli.demo import demo
from ch_sink.cli.init import init
from ch_sink.cli.output import Output
from ch_sink.cli.run import run
from ch_sink.cli.status import status
from ch_sink.errors import ChSinkError

__all__ = ["app", "main"]

app = typer.Typer(
    name="ch_sink",
    help="Debezium change events from Kafka into ClickHouse tables that equal their source.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog="Exit codes: 0 done, 1 the stream failed or a check did, 2 wrong usage or configuration.",
)


def _version(asked: bool) -> None:
    if asked:
        Output().say(f"ch_sink {ch_sink.__version__}")
        raise typer.Exit


@app.callback()
def _frame(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", is_eager=True, callback=_version)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and the log; may stand anywhere.")] = False,
) -> None:
    """Options before the command."""


app.command()(init)
app.command()(check)
app.command()(run)
app.command()(status)
app.command()(demo)


@app.command()
def server(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=0, max=65535)] = 8123,
    path: Annotated[Path, typer.Option(help="Folder of the tables; made if it is missing.")] = Path("./clickhouse"),
    user: Annotated[str, typer.Option(help="Name that clients must give.")] = "default",
) -> None:
    """Serve ClickHouse's HTTP interface from the embedded engine, until it is stopped.

    The password that clients must give is read from the environment variable CH_SINK_SERVER_PASSWORD.
    """
    from ch_sink.cli.server import serve

    serve(host, port, path, user=user, password=os.environ.get("CH_SINK_SERVER_PASSWORD", ""), say=Output().note)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry of ``ch_sink``. Always leaves by SystemExit."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    logging.basicConfig(
        level=logging.INFO if debug else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s" if debug else "%(message)s",
        stream=sys.stderr,
    )
    if not debug:
        # What they warn of comes again as an error of our own, with what to do next.
        for noisy in ("urllib3.connectionpool", "clickhouse_connect", "py4j"):
            logging.getLogger(noisy).setLevel(logging.CRITICAL)
    output = Output()
    try:
        app(args=[word for word in given if word != "--debug"], prog_name="ch_sink")
    except ChSinkError as error:
        output.error(error, debug=debug)
        sys.exit(error.exit_code)
    except Exception as error:  # noqa: BLE001 - the last frame: whatever it is, the reader gets a sentence
        output.crash(error, debug=debug)
        sys.exit(1)
