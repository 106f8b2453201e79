"""A cluster of one node, for tables of the engine ``Distributed``."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from ch_sink.clickhouse import Client, execute
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from tests.support.endpoint import settings_for
from tests.support.state_tables import create_statement

pytest.register_assert_rewrite("tests.support.command_plans")

_numbers = count(1)

CLUSTER = """<clickhouse>
<tcp_port>9000</tcp_port>
<remote_servers><one><shard>
<internal_replication>true</internal_replication>
<replica><host>localhost</host><port>9000</port></replica>
</shard></one></remote_servers>
</clickhouse>
"""


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    path: Path = tmp_path_factory.mktemp("node")
    extra = path / "ch_sink" / "config.d"
    extra.mkdir(parents=True)
    (extra / "cluster.xml").write_text(CLUSTER, encoding="utf-8")
    with EmbeddedClickHouse(path) as endpoint:
        client = Client(settings_for(endpoint.url))
        client.command("CREATE DATABASE own_tables")
        names = ("ledger", "dead_letters", "handover", "pending")
        execute(client, [create_statement(name, "own_tables", name) for name in names])
        yield client
        client.close()


@pytest.fixture
def over(node: Client) -> Iterator[str]:
    """A fresh database on the node."""
    name = f"test_{next(_numbers)}"
    node.command(f"CREATE DATABASE {name}")
    yield name
    node.command(f"DROP DATABASE {name} SYNC")
