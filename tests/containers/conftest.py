"""Real ClickHouse servers: one container per version, or servers that are running already.

``CH_SINK_TEST_CLICKHOUSE`` names images, or URLs such as ``http://user:password@localhost:8123``, with spaces between.
Without it these tests are for the long run.
"""

import gc
import os
import time
import warnings
from collections.abc import Iterator
from functools import cache
from itertools import count
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from ch_sink.clickhouse import ClickHouseSettings, Client, connect, disconnect, execute
from ch_sink.errors import ClickHouseError
from tests.support.endpoint import settings_for
from tests.support.state_tables import create_statement

VERSIONS = os.environ.get(
    "CH_SINK_TEST_CLICKHOUSE", "clickhouse/clickhouse-server:25.8 clickhouse/clickhouse-server:26.3"
).split()
STARTUP = 120.0
"""Seconds that a server may take until it answers."""
OWN_TABLES = ("ledger", "dead_letters", "handover", "pending")

_numbers = count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.containers)
            item.add_marker(pytest.mark.slow)
            if "CH_SINK_TEST_CLICKHOUSE" not in os.environ:
                item.add_marker(pytest.mark.long)


def docker_engine() -> None:
    """Skips where no engine answers."""
    if why := _no_engine():
        pytest.skip(f"no Docker engine answers ({why})")


@cache
def _no_engine() -> str:
    import docker
    from docker.errors import DockerException

    with warnings.catch_warnings():
        # The client leaves its sockets open when it fails.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            client = docker.from_env(timeout=5)
            client.ping()
            client.close()
        except DockerException as error:
            return str(error)[:80]
        finally:
            gc.collect()
    return ""


def ready(settings: ClickHouseSettings) -> Client:
    """The client, as soon as the server answers."""
    until = time.monotonic() + STARTUP
    while True:
        try:
            return connect(settings)
        except ClickHouseError:
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


@pytest.fixture(scope="session", params=VERSIONS, ids=lambda version: version.rpartition("@")[2].rpartition("/")[2])
def server(request: pytest.FixtureRequest) -> Iterator[ClickHouseSettings]:
    """How to reach a server of this version."""
    if request.param.startswith("http"):
        url = urlsplit(request.param)
        yield settings_for(
            f"{url.scheme}://{url.hostname}:{url.port}",
            username=unquote(url.username or "default"),
            password=unquote(url.password or ""),
        )
        return
    docker_engine()
    from testcontainers.core.container import DockerContainer

    container = DockerContainer(request.param).with_exposed_ports(8123)
    for name, value in {"USER": "sink", "PASSWORD": "of the test", "DEFAULT_ACCESS_MANAGEMENT": "1"}.items():
        container.with_env(f"CLICKHOUSE_{name}", value)
    with container:
        url = f"http://{container.get_container_host_ip()}:{container.get_exposed_port(8123)}"
        yield settings_for(url, username="sink", password="of the test")


@pytest.fixture(scope="session")
def client(server: ClickHouseSettings) -> Iterator[Client]:
    yield ready(server)
    disconnect(server)


@pytest.fixture(autouse=True)
def _needs_a_server(client: Client) -> None:
    """Also what a suite tests in memory is left to the suite's own place."""


@pytest.fixture
def database(client: Client) -> Iterator[str]:
    name = f"test_{os.getpid()}_{next(_numbers)}"
    client.command(f"CREATE DATABASE {name}")
    yield name
    client.command(f"DROP DATABASE {name}")


@pytest.fixture(scope="session")
def own_tables(client: Client) -> Iterator[str]:
    name = f"own_tables_{os.getpid()}_{next(_numbers)}"
    client.command(f"CREATE DATABASE {name}")
    execute(client, [create_statement(kind, name, kind) for kind in OWN_TABLES])
    yield name
    client.command(f"DROP DATABASE {name}")


@pytest.fixture
def stream() -> str:
    return f"stream-{next(_numbers)}"
