"""``ch_sink server``: ClickHouse's HTTP interface over the embedded engine, until it is stopped."""

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ch_sink.cli.output import Output

if TYPE_CHECKING:
    from ch_sink.wiring.process import Stop


def server(
    context: typer.Context,
    host: Annotated[str, typer.Option(metavar="HOST", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="PORT", help="Port to listen on; 0 takes a free one.", min=0, max=65535)
    ] = 8123,
    path: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the tables; created if missing.")] = Path(
        "./clickhouse"
    ),
    user: Annotated[str, typer.Option(metavar="NAME", help="User name that clients log in with.")] = "default",
) -> None:
    """Serve ClickHouse's HTTP interface from an embedded engine, to try ch_sink without a server.

    Clients authenticate with the password in the environment variable CH_SINK_SERVER_PASSWORD.
    """
    from ch_sink.local.clickhouse.server import ClickHouseEndpoint, run

    logging.getLogger("ch_sink.local").setLevel(logging.INFO)
    stop: Stop = context.obj

    def ready(endpoint: ClickHouseEndpoint) -> None:
        stop.expected = True
        Output().note(f"ClickHouse {endpoint.engine.version} at {endpoint.url}, data in {endpoint.engine.path}")

    password = os.environ.get("CH_SINK_SERVER_PASSWORD", "")
    run(ClickHouseEndpoint(path.resolve(), host, port, user, password), stop.event, on_ready=ready)
