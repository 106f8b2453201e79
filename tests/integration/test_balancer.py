"""Two servers behind a balancer that sends each request to the next one.

The embedded engine has no replication: the servers are two, and what a replica fetches on SYSTEM SYNC REPLICA is copied
here. The containers have the real thing (`tests.containers.test_replicas`).
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from ch_sink.clickhouse import ClickHouseLookup, ClickHouseWriter, Client, detect
from ch_sink.clickhouse.replicas import Replicas
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.model.policy import policy_of
from ch_sink.ports import Insert
from ch_sink.table.model import TargetTable
from tests.support.endpoint import settings_for
from tests.support.proxy import Balancer

pytestmark = [pytest.mark.integration, pytest.mark.slow]

DDL = "CREATE TABLE d.t (id UInt64, v String, _version UInt128) ENGINE = ReplacingMergeTree(_version) ORDER BY id"


class Pair:
    """Two servers with a table of the same name, and a client that meets them in turns."""

    def __init__(self, urls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.balancer = Balancer(*urls)
        self.direct = [Client(settings_for(url)) for url in urls]
        for client in self.direct:
            client.command("CREATE DATABASE d")
            client.command(DDL)
        self.client = Client(settings_for(self.balancer.url))
        self.client.replicas = Replicas(lambda: self.client.answered_by, self.sync, lambda _: True)
        self.syncs = 0
        monkeypatch.setattr(self.client, "is_replicated", lambda *_: True)

    def sync(self, table: str) -> None:
        """What a replica does: it fetches the parts that others have."""
        self.syncs += 1
        self.client.rows("SELECT 1 AS one")
        name = self.client.answered_by
        for client in self.direct:
            client.rows("SELECT 1 AS one")
        [behind] = [c for c in self.direct if c.answered_by == name]
        for other in self.direct:
            rows = other.arrow("SELECT * FROM d.t")
            if other is not behind and rows.num_rows:
                behind.insert("d.t", rows, settings={})

    def table(self) -> TargetTable:
        return detect(self.client, "d", "t", policy_of(deletes="ignore"))


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    with EmbeddedClickHouse() as one, EmbeddedClickHouse() as other:
        yield Pair([one.url, other.url], monkeypatch)


@pytest.mark.long
def test_a_client_that_stays_with_a_server_gets_its_answers_only(pair: Pair) -> None:
    one = pair.direct[0]
    one.command("CREATE TABLE d.own (n UInt8) ENGINE = Memory")
    staying = Client(settings_for(pair.balancer.url, server=one.answered_by))
    for number in range(1, 5):
        staying.insert("d.own", pa.table({"n": pa.array([1], pa.uint8())}), settings={})
        staying.command("INSERT INTO d.own SELECT 2", again=False)
        assert staying.rows("SELECT count() AS n FROM d.own") == [{"n": 2 * number}]
        pair.client.rows("SELECT 1 AS one")  # the turn changes
    staying.close()


def row(version: int) -> pa.Table:
    values: dict[str, Any] = {"id": pa.array([1], pa.uint64()), "v": [f"v{version}".encode()]}
    return pa.table({**values, "_version": pa.array([version.to_bytes(16, "little")], pa.binary(16))})


@pytest.mark.long
def test_a_lookup_sees_every_insert_whichever_server_took_it(pair: Pair) -> None:
    table = pair.table()
    writer, lookup = ClickHouseWriter(pair.client, table), ClickHouseLookup(pair.client, table, ("id",))
    took = set()
    for version in range(1, 9):
        writer.write(Insert(row(version), "*"), f"t{version}")
        took.add(pair.client.answered_by)
        if version % 3 == 0:
            pair.client.rows("SELECT 1 AS one")  # the turn changes
        found = lookup.fetch(pa.table({"id": pa.array([1], pa.uint64())})).rows
        assert found.column("v").to_pylist() == [f"v{version}".encode()]
    assert len(took) == 2
    assert pair.syncs
