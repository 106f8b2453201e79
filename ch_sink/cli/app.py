"""The commands and what they share: exit codes, errors without traceback, ``--debug``."""

import logging
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import ch_sink
from ch_sink.cli.dead_letters import dead_letters
from ch_sink.cli.demo import demo, server
from ch_sink.cli.explain import explain
from ch_sink.cli.init import check, init
from ch_sink.cli.options import Command
from ch_sink.cli.output import Output
from ch_sink.cli.repair import purge, repair, resync
from ch_sink.cli.run import pause, resume, run
from ch_sink.cli.status import status
from ch_sink.cli.verify import verify
from ch_sink.errors import ChSinkError
from ch_sink.wiring.process import Stop

PROGRAM = "ch_sink"

GROUPS = {
    "Set up": ("init", "check"),
    "Run": ("run", "pause", "resume"),
    "Look": ("status", "verify", "explain", "dead-letters"),
    "Put right": ("repair", "resync", "purge"),
    "Try": ("demo", "server"),
}
"""The commands as ``--help`` shows them."""


class _Grouped(TyperGroup):
    """Lists the commands by what one does with them."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the sections, with one column for the summaries of all."""
        width = max(map(len, self.commands))
        for group, names in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name.ljust(width), self.commands[name].get_short_help_str(80)) for name in names])


app = typer.Typer(
    name=PROGRAM,
    cls=_Grouped,
    help="Keep ClickHouse tables equal to their source: Debezium change events from Kafka, applied exactly once.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=(
        "Exit codes: 0 done, 1 a stream or a check failed or tables differ, 2 wrong usage or configuration, 130 and "
        "143 stopped by Ctrl-C or SIGTERM."
    ),
)


def _version(wanted: bool) -> None:
    if wanted:
        Output().say(f"{PROGRAM} {ch_sink.__version__}")
        raise typer.Exit


@app.callback()
def _frame(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_version)
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the log and tracebacks. May stand before or after the command.")
    ] = False,
) -> None:
    """Options before the command."""


app.command(cls=Command, short_help="Print the DDL of each table; --apply executes it.")(init)
app.command(cls=Command, short_help="Test every precondition of each stream.")(check)
app.command(cls=Command, short_help="Apply changes from Kafka to ClickHouse until stopped.")(run)
app.command(cls=Command, short_help="Show state, lag, rows and dead letters of each stream.")(status)
app.command(cls=Command, short_help="Pause streams after their running batch.")(pause)
app.command(cls=Command, short_help="Resume streams that are paused or stopped.")(resume)
app.add_typer(dead_letters, name="dead-letters", short_help="List, show, retry or drop records that were not applied.")
app.command(cls=Command, short_help="Compare each table with its source, while the stream runs.")(verify)
app.command(cls=Command, short_help="Show what became of each event of one row.")(explain)
app.command(cls=Command, short_help="Correct rows that differ from the source, by key.")(repair)
app.command(cls=Command, short_help="Fill tables from the source or the topic, and swap them in.")(resync)
app.command(cls=Command, short_help="Remove deleted rows, or one key, from the disk.")(purge)
app.command(cls=Command, short_help="Apply recorded events on this machine and compare the tables.")(demo)
app.command(cls=Command, short_help="Serve ClickHouse's HTTP interface from an embedded engine.")(server)


def run_command(arguments: Sequence[str], stop: Stop) -> int:
    """Run one command line; returns its exit code, or leaves by SystemExit."""
    debug = "--debug" in arguments
    logging.basicConfig(
        level=logging.INFO if debug else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s" if debug else "%(message)s",
    )
    if not debug:
        # Whatever they warn of is reported as an error of ch_sink, with the next step.
        for noisy in ("urllib3.connectionpool", "clickhouse_connect", "py4j"):
            logging.getLogger(noisy).setLevel(logging.CRITICAL)
    output = Output()
    try:
        words = [word for word in arguments if word != "--debug"]
        app(args=["--debug", *words] if debug else words, prog_name=PROGRAM, obj=stop)
    except ChSinkError as error:
        if not stop.requested:
            output.error(error, debug=debug)
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - the outermost frame: any error becomes one sentence
        if not stop.requested:
            output.crash(error, debug=debug)
        return 1
    return 0
