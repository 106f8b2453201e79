"""One insert that the server splits into a part for each table partition, all under one token, sent again.

From 26.2 on, servers note tokens for an insert and no longer for a part. What is relied on here is the same: a part
that was stored before the server died is not stored twice, and the others are stored. A fenced insert is an
``INSERT … SELECT``, whose token 26.1 ignores by default.
"""

import random
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from ch_sink.clickhouse import Client
from ch_sink.clickhouse.arrow_io import fenced
from ch_sink.clickhouse.fence import SETTINGS
from ch_sink.clickhouse.writer import PINNED
from ch_sink.errors import ChSinkError
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from tests.support.endpoint import on_engines, settings_for

pytestmark = pytest.mark.integration

PARTITIONS, ROWS = 150, 20
WHOLE = pa.table({"p": pa.array([i % PARTITIONS for i in range(PARTITIONS * ROWS)], pa.int32())})
ONCE = Counter(dict.fromkeys(range(PARTITIONS), ROWS))


def made(client: Client, name: str) -> None:
    client.command(
        f"CREATE TABLE {name} (p Int32) ENGINE = MergeTree PARTITION BY p ORDER BY p "
        "SETTINGS non_replicated_deduplication_window = 10000"
    )


def send(client: Client, name: str, rows: pa.Table, token: str, fence: str = "") -> None:
    query = (["p"], fenced([("p", "Int32")], fence)) if fence else None
    client.insert(name, rows, settings={**PINNED, **SETTINGS, "insert_deduplication_token": token}, query=query)


def stored(client: Client, name: str) -> Counter[int]:
    return Counter({row["p"]: row["n"] for row in client.rows(f"SELECT p, count() AS n FROM {name} GROUP BY p")})


@pytest.mark.sampled(4)
@on_engines("25.8", "26.1", "26.3", "")
@pytest.mark.parametrize(("first", "fence"), [(1, ""), (40, ""), (PARTITIONS, ""), (40, "1")])
def test_parts_that_are_stored_are_left_alone_and_the_others_are_stored(
    client: Client, database: str, first: int, fence: str
) -> None:
    name = f"{database}.t"
    made(client, name)
    begun = WHOLE.filter(pc.less(WHOLE["p"], first))
    for rows in (begun, WHOLE, WHOLE, begun):
        send(client, name, rows, "one token", fence)
    assert stored(client, name) == ONCE
    send(client, name, WHOLE, "another token", fence)
    assert stored(client, name) == Counter(dict.fromkeys(range(PARTITIONS), 2 * ROWS))


@pytest.mark.long
@on_engines("26.1", "26.3", "")
def test_a_server_that_is_killed_in_the_middle_stores_each_part_once(
    clickhouse: EmbeddedClickHouse, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    begun, rng = 0, random.Random(1)
    with EmbeddedClickHouse(tmp_path / "data", engine=request.node.callspec.params["clickhouse"]) as server:
        client = Client(settings_for(server.url))
        client.command("CREATE DATABASE d")
        made(client, "d.t")
        for turn in range(12):
            client.command("TRUNCATE TABLE d.t")
            sender = threading.Thread(target=_try, args=(client, "d.t", f"turn {turn}"))
            sender.start()
            sender.join(rng.uniform(0.02, 0.4))
            server.kill()
            sender.join()
            server.start()
            found = stored(client, "d.t")
            assert set(found.values()) <= {ROWS}
            begun += 0 < len(found) < PARTITIONS
            send(client, "d.t", WHOLE, f"turn {turn}")
            assert stored(client, "d.t") == ONCE
        client.close()
    assert begun, "no kill came in the middle: the test has shown nothing"


def _try(client: Client, name: str, token: str) -> None:
    with suppress(ChSinkError):
        send(client, name, WHOLE, token)
