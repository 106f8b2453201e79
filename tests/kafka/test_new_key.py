"""Another primary key at the source, as docs/schema-changes.md goes on with it: every command, over a broker."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from ch_sink.clickhouse import Client
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from tests.support.fixtures import Recorded
from tests.support.hand import mysql
from tests.support.kafka import fresh_topic, produce
from tests.support.sink import config_file, inside, run_inline

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.slow]

Row = dict[str, Any]
OLD, NEW = ("id",), ("region", "id")


class Source:
    """A table whose changes a connector sends into a topic of two partitions; parts of its rows go to each."""

    def __init__(self, kafka: LocalKafka, *, schemas: bool) -> None:
        """``schemas``: keys carry their schemas, which tell the old key's bytes from the new one's."""
        self.schemas = schemas
        self.kafka, self.topic, self.sent = kafka, fresh_topic("new_key"), 0
        self.offsets = [0, 0]
        kafka.create_topic(self.topic, 2)

    def send(self, op: str, rows: Iterable[Row], key: tuple[str, ...]) -> None:
        for row in rows:
            self.sent += 1
            named = {name: row[name] for name in key}
            before = row if op == "d" else None
            event = mysql(op, named, before, None if op == "d" else row, 100 + self.sent, table="orders")
            place, time = row["id"] % 2, 1_700_000_000_000 + self.sent
            texts = [json.dumps(one).encode() for one in (self._stated(named), event.value)]
            record = Recorded(self.topic, place, self.offsets[place], time, texts[0], texts[1], ())
            self.offsets[place] += 1
            produce(self.kafka, [record])

    def _stated(self, key: Row) -> Row:
        if not self.schemas:
            return key
        fields = [{"field": n, "type": "int64" if n == "id" else "string", "optional": False} for n in key]
        return {"schema": {"type": "struct", "name": "my.orders.Key", "fields": fields}, "payload": key}


def rows(regions: str, v: str) -> list[Row]:
    return [{"id": i, "region": region, "v": v} for i in range(1, 5) for region in regions]


def done(*words: str | Path) -> str:
    found = inside(*words)
    assert found.returncode == 0, (words, found.stdout, found.stderr)
    return found.stdout + found.stderr


@pytest.mark.long
@pytest.mark.parametrize("schemas", [True, pytest.param(False, marks=pytest.mark.long)])
def test_another_table_and_stream_go_on_with_the_new_key(
    tmp_path: Path, mock_kafka: LocalKafka, clickhouse: EmbeddedClickHouse, client: Client, database: str, schemas: bool
) -> None:
    source = Source(mock_kafka, schemas=schemas)

    def config(table: str, **more: Any) -> Path:
        return config_file(tmp_path, mock_kafka, clickhouse, source.topic, table, database, **more)

    source.send("c", rows("n", "a"), OLD)
    old = config("orders")
    done("init", old, "--apply")
    run_inline(old)
    source.send("u", rows("n", "b")[:1], NEW)
    run_inline(old)
    for failing in (inside("check", old), inside("init", config("too_early"), "--apply")):
        said = failing.stdout + failing.stderr
        assert (failing.returncode, "the key has the columns region, id, earlier ones had id" in said) == (1, True)
        assert "start: latest" in said

    new = config("orders2", stream="orders2", start="latest")
    done("init", new, "--apply")
    run_inline(new)
    assert "key (region, id)" in done("check", new)
    source.send("r", rows("ns", "s"), NEW)
    source.send("d", rows("n", "s")[:1], NEW)
    run_inline(new)
    wanted = rows("ns", "s")[1:]
    current = f"SELECT id, region, v FROM {database}.orders2_current ORDER BY id, region"
    assert client.rows(current) == wanted
    done("check", config("orders2", stream="orders2"))  # start says where a new stream begins
    done("verify", new, "--against", "topic")
    gone = json.dumps({"region": "n", "id": 1})
    assert [event["op"] for event in json.loads(done("explain", new, gone, "--json"))["events"]] == ["u", "r", "d"]
    client.command(f"INSERT INTO {database}.orders2 (id, region, v, _version) VALUES (9, 'x', 'wrong', 1)")
    [wrong] = json.loads(inside("verify", new, "--against", "topic", "--json").stdout)["streams"]
    assert (wrong["missing"], wrong["extra"], wrong["different"]) == (0, 1, 0)
    done("resync", new, "--against", "topic", "--apply")
    assert client.rows(current) == wanted
    source.send("u", rows("s", "t")[:1], NEW)
    run_inline(new)
    wanted[0]["v"] = "t"
    assert client.rows(current) == wanted
    done("verify", new, "--against", "topic")
    done("purge", new, "--key", gone, "--apply")
    assert client.rows(f"SELECT id FROM {database}.orders2 WHERE id = 1 AND region = 'n'") == []
    assert client.rows(current) == wanted
