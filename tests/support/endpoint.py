"""A ClickHouse endpoint for tests: one process per engine and test run, shared by the modules.

The engine is the environment's own, or that of CH_SINK_ENGINE. Tests marked ``on_engines(…)`` run once for each of the
older engines named, and are skipped, with pip's words, where one could not be installed.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from ch_sink.clickhouse import ClickHouseSettings, Client, Retry, connect, disconnect, execute
from ch_sink.local.clickhouse.launch import ENGINE, EmbeddedClickHouse
from tests.support.state_tables import create_statement

_numbers = count(1)


@dataclass(frozen=True)
class Fenced:
    """A fence that lets every insert through, by a query."""

    execution: str = "e"
    repeats: bool = False
    condition: str = "1 = 1"
    query_id: str = ""
    partition_id: str = ""

    def check(self) -> None: ...


_FOR_FEW_ROWS = """<clickhouse><profiles><default>
<max_threads>1</max_threads><output_format_parallel_formatting>0</output_format_parallel_formatting>
<input_format_parallel_parsing>0</input_format_parallel_parsing><compile_expressions>0</compile_expressions>
<compile_aggregate_expressions>0</compile_aggregate_expressions><compile_sort_description>0</compile_sort_description>
</default></profiles></clickhouse>"""
"""Threads and machine code are for many rows: a query of a test took a third longer with them."""


def settings_for(url: str, **changes: object) -> ClickHouseSettings:
    """Settings that fail within seconds instead of minutes."""
    quick: dict[str, object] = {"timeout": 60.0, "connect_timeout": 3.0, "retry": Retry(3, 0.01, 0.05), **changes}
    return ClickHouseSettings(url=url, **quick)  # type: ignore[arg-type]


def on_engines(*versions: str, long: Sequence[str] = ()) -> pytest.MarkDecorator:
    """Run a test, or by ``pytestmark`` a file, on each of these engines, and in the long run on those of ``long``.

    "" is the environment's own.
    """
    made = [
        pytest.param(
            version,
            marks=[*skip_unless_installed(version), *([pytest.mark.long] if version in long else [])],
            id=version or "newest",
        )
        for version in (*versions, *long)
    ]
    return pytest.mark.parametrize("clickhouse", made, indirect=True, scope="session")


def skip_unless_installed(version: str) -> list[pytest.MarkDecorator]:
    folder = Path(sys.prefix) / "engines" / version
    if not version or folder.is_dir():
        return []
    error = folder.with_name(f"{version}.error")
    why = error.read_text().strip() if error.is_file() else f"compose/engine.sh {sys.prefix} {version} installs it"
    return [pytest.mark.skip(reason=f"the engine {version} is not installed: {why}")]


@pytest.fixture(scope="session")
def endpoints() -> Iterator[Callable[[str], EmbeddedClickHouse]]:
    """The endpoint of an engine. Each starts once: tests on several engines come in any order."""
    with ExitStack() as stack:
        yield cache(lambda engine: endpoint(stack, engine))


def endpoint(stack: ExitStack, engine: str = "") -> EmbeddedClickHouse:
    """An endpoint for queries of few rows, which is stopped with the stack."""
    folder = stack.enter_context(TemporaryDirectory(prefix="ch_sink-clickhouse-"))
    profile = Path(folder) / "ch_sink" / "users.d" / "few_rows.xml"
    profile.parent.mkdir(parents=True)
    profile.write_text(_FOR_FEW_ROWS)
    return stack.enter_context(EmbeddedClickHouse(folder, engine=engine))


@pytest.fixture(scope="session")
def clickhouse(request: pytest.FixtureRequest, endpoints: Callable[[str], EmbeddedClickHouse]) -> EmbeddedClickHouse:
    return endpoints(getattr(request, "param", os.environ.get(ENGINE, "")))


@pytest.fixture(scope="session")
def client(clickhouse: EmbeddedClickHouse) -> Iterator[Client]:
    settings = settings_for(clickhouse.url)
    yield connect(settings)
    disconnect(settings)


@pytest.fixture
def database(client: Client) -> Iterator[str]:
    """A fresh database."""
    name = f"test_{next(_numbers)}"
    client.command(f"CREATE DATABASE {name}")
    yield name
    client.command(f"DROP DATABASE {name} SYNC")


@pytest.fixture(scope="session")
def own_tables(client: Client) -> str:
    """A database that holds the sink's own tables; tests differ by their stream's name."""
    client.command("CREATE DATABASE IF NOT EXISTS own_tables")
    names = ("ledger", "dead_letters", "handover", "pending")
    execute(client, [create_statement(name, "own_tables", name) for name in names])
    return "own_tables"


@pytest.fixture
def stream() -> str:
    """A name that no other test uses."""
    return f"stream-{next(_numbers)}"


def await_query(endpoint: EmbeddedClickHouse, query: str) -> None:
    """Wait until a query of this text, sent by somebody else, is running."""
    text = "SELECT count() FROM system.processes WHERE position(query, {asked:String}) > 0"
    url = f"{endpoint.url}/?{urlencode({'query': text, 'param_asked': query})}"
    deadline = time.monotonic() + 30
    while int(urlopen(url, timeout=30).read()) == 0:
        assert time.monotonic() < deadline, f"{query} does not begin"
        time.sleep(0.05)
