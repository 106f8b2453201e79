"""A ClickHouse endpoint for tests: one process per test run, a database per test module."""

from collections.abc import Iterator
from itertools import count

import pytest

from ch_sink.clickhouse import ClickHouseSettings, Client, Retry, connect, create_statement, disconnect, execute
from ch_sink.embedded.launch import EmbeddedClickHouse

__all__ = ["clickhouse", "client", "database", "settings_for"]

_numbers = count(1)


def settings_for(url: str, **changes: object) -> ClickHouseSettings:
    """Settings that fail within seconds instead of minutes."""
    quick: dict[str, object] = {"timeout": 60.0, "connect_timeout": 3.0, "retry": Retry(3, 0.01, 0.05), **changes}
    return ClickHouseSettings(url=url, **quick)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def clickhouse() -> Iterator[EmbeddedClickHouse]:
    with EmbeddedClickHouse() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def client(clickhouse: EmbeddedClickHouse) -> Iterator[Client]:
    settings = settings_for(clickhouse.url)
    yield connect(settings)
    disconnect(settings)


@pytest.fixture
def database(client: Client) -> Iterator[str]:
    """A fresh database that holds the sink's own tables."""
    name = f"contract_{next(_numbers)}"
    client.command(f"CREATE DATABASE {name}")
    execute(client, [create_statement(t, name, t) for t in ("ledger", "dead_letters", "handover", "pending")])
    yield name
    client.command(f"DROP DATABASE {name}")
