"""A running stream crosses over from a ledger of the version before typed entries (`tests/fixtures/ledger`)."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import msgspec
import pytest

from ch_sink.clickhouse import ClickHouseLedger, Client, create_statement, execute, ledger_upgrade
from ch_sink.errors import AccessDenied, LedgerConflict
from ch_sink.kafka import KafkaSettings, TopicOffsets
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka.broker import LocalKafka
from ch_sink.order import State
from ch_sink.ports import (
    BackwardStepSeen,
    ChangedColumn,
    RangeIntent,
    SchemaChangeBegun,
    SchemaChangeFinished,
    TopicFacts,
    TruncateFloor,
)
from tests.support import plain_job
from tests.support.fixtures import Recorded
from tests.support.kafka import produce
from tests.support.sink import config_file

pytestmark = [pytest.mark.integration, pytest.mark.kafka]

FIXTURE = Path(__file__).resolve().parent.parent / "fixtures" / "ledger"
STREAMS = {"orders": 2, "accounts": 1, "stock": 1}
"""Streams of the fixture, each with the partitions of its topic."""
OFFSETS = {"orders": "5", "accounts": "6", "stock": "8"}
EXPECTED = json.loads((FIXTURE / "expected.json").read_text())


@dataclass(frozen=True)
class Left:
    """What the earlier version left, in a database of its own."""

    clickhouse: EmbeddedClickHouse
    client: Client
    database: str

    def ledger(self, stream: str) -> ClickHouseLedger:
        return ClickHouseLedger(self.client, self.database, "ch_sink_ledger", stream)

    def load(self, name: str, text: str) -> None:
        query = urlencode({"query": f"INSERT INTO {self.database}.{name} FORMAT JSONEachRow"})
        urlopen(Request(f"{self.clickhouse.url}/?{query}", data=text.encode()), timeout=30).close()

    def run(self, file: Path) -> None:
        """The statements of a file, for this database."""
        for statement in (
            file.read_text().replace("shop.", f"{self.database}.").replace("`shop`", self.database).split(";\n")
        ):
            self.client.command(statement)

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """Rows of a query as the fixture has them."""
        query = urlencode({"query": f"{sql} FORMAT JSONEachRow", "output_format_json_quote_64bit_integers": 1})
        with urlopen(f"{self.clickhouse.url}/?{query}", timeout=30) as answer:
            return [json.loads(line) for line in answer.read().splitlines()]


@pytest.fixture
def left(clickhouse: EmbeddedClickHouse, client: Client, database: str) -> Left:
    """The ledger's table as the earlier version made and filled it."""
    made = Left(clickhouse, client, database)
    made.run(FIXTURE / "ledger.sql")
    made.load("ch_sink_ledger", (FIXTURE / "ledger.jsonl").read_text())
    return made


def test_a_ledger_that_is_not_upgraded_answers_the_same_questions(left: Left) -> None:
    """`status` and `check` may be asked before the job of this version has begun."""
    asked = [_answers(left.ledger(stream), f"id-of-{stream}") for stream in STREAMS]
    assert left.ledger("orders").last_intents() == [
        RangeIntent("shop.public.orders", "id-of-orders", 1, 10, 14, 4, 67108864, 1)
    ]
    assert [t.rows for t in left.ledger("orders").totals()] == [13, 10]
    assert left.ledger("accounts").progress("id-of-accounts") == {0: 11}
    assert left.ledger("orders").upgrade()
    assert not left.ledger("orders").upgrade()
    for stream, before in zip(STREAMS, asked, strict=True):
        assert _answers(left.ledger(stream), f"id-of-{stream}") == before
        left.ledger(stream).claim("later")
        assert _answers(left.ledger(stream), f"id-of-{stream}") == before


def _answers(ledger: ClickHouseLedger, topic_id: str) -> list[Any]:
    return [
        ledger.totals(),
        ledger.history(100),
        ledger.history(2),
        ledger.progress(topic_id),
        ledger.topic_ids(),
        ledger.last_intents(),
        [ledger.states_at(topic_id, {p: offset}).get(p) for p in (0, 1) for offset in range(16)],
        ledger.progress_of(topic_id, 0, 6),
    ]


FACTS: dict[str, list[Any]] = {
    "orders": [
        TopicFacts("id-of-orders", 2, 3),
        SchemaChangeBegun((), ("id",)),
        SchemaChangeFinished((ChangedColumn("extra", "Nullable(Int64)"),)),
        SchemaChangeFinished((ChangedColumn("more", "Nullable(String)"),)),
        TruncateFloor(3, 130, 130),
        BackwardStepSeen("", 1, 7, "regress", "pg", 126, 132),
        BackwardStepSeen("", 0, 7, "regress", "pg", 40, 131),
        BackwardStepSeen("", 0, 13, "regress", "pg", 60, 226),
    ],
    "accounts": [TopicFacts("id-of-accounts", 1, 0), SchemaChangeBegun((), ("id",))],
    "stock": [TopicFacts("id-of-stock", 1, 0)],
}


@pytest.mark.parametrize("stream", STREAMS)
def test_the_first_claim_finds_every_fact_and_cut_of_the_earlier_version(left: Left, stream: str) -> None:
    ledger = left.ledger(stream)
    ledger.claim("later")
    kinds = (TopicFacts, SchemaChangeBegun, SchemaChangeFinished, TruncateFloor, BackwardStepSeen)
    assert [fact for kind in kinds for fact in ledger.facts(kind)] == FACTS[stream]
    assert ledger.cuts(f"id-of-{stream}") == {"orders": {1: [10]}, "accounts": {0: [11]}, "stock": {}}[stream]
    assert ledger.open_schema_change() == (SchemaChangeBegun((), ("id",)) if stream == "accounts" else None)
    ledger.record(SchemaChangeFinished())
    ledger.release()
    again = left.ledger(stream)
    again.claim("later still")
    assert again.open_schema_change() is None


def test_a_job_of_the_earlier_version_that_still_runs_loses_the_stream(left: Left) -> None:
    """It looks at the claims as it wrote them."""
    left.ledger("orders").claim("later")
    for stream, owner in (("orders", "by a later version of ch_sink"), ("stock", None)):
        [newest] = left.client.rows(
            f"SELECT details FROM {left.database}.ch_sink_ledger FINAL WHERE stream = '{stream}' AND entry = 'claim' "
            "ORDER BY start_offset DESC LIMIT 1"
        )
        run = msgspec.json.decode(newest["details"])["run_id"]
        assert (run == owner) == (stream == "orders")


def test_a_living_job_of_the_earlier_version_on_this_host_keeps_the_stream(
    left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ch_sink.stream.claims.live", lambda _stream, claim: claim.number == 2)
    with pytest.raises(LedgerConflict, match="is owned by process"):
        left.ledger("orders").claim("later")
    assert left.ledger("orders").facts(TruncateFloor) == []


def test_an_upgrade_that_was_interrupted_is_done_again(left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: object) -> Iterator[Any]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ledger_upgrade, "_entries", dies)
        with pytest.raises(KeyboardInterrupt):
            left.ledger("orders").claim("later")
    assert left.ledger("orders").facts(TruncateFloor) == []
    monkeypatch.setattr("socket.gethostname", lambda: "worker-2")
    ledger = left.ledger("orders")
    ledger.claim("later still")
    assert ledger.facts(TruncateFloor) == [TruncateFloor(3, 130, 130)]
    assert ledger.cuts("id-of-orders") == {1: [10]}


def test_a_user_who_may_not_alter_the_table_is_told_what_to_do(left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise AccessDenied("sink may not ALTER", code=497)

    monkeypatch.setattr(ledger_upgrade, "execute", refuses)
    with pytest.raises(AccessDenied, match="made by an earlier version") as denied:
        left.ledger("orders").claim("later")
    assert "init" in str(denied.value.hint)


@pytest.mark.parametrize("stream", STREAMS)
def test_the_stream_goes_on_where_it_was(
    left: Left, stream: str, tmp_path: Path, mock_kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same tokens, attempts, ranges, cuts, states, facts and rows as when the earlier version went on.

    That one inserted again what it had stored, under the tokens that it had; this one sees that it is stored.
    """
    topic, folder = f"{left.database}.{stream}", FIXTURE / stream
    mock_kafka.create_topic(topic, STREAMS[stream])
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    produce(mock_kafka, [_record(topic, i, r) for i, r in enumerate(records)])
    offsets = TopicOffsets(KafkaSettings({"bootstrap.servers": mock_kafka.bootstrap}))
    topic_id, old_id = offsets.topic_id(topic), f"id-of-{stream}"
    offsets.close()
    left.client.command(f"TRUNCATE TABLE {left.database}.ch_sink_ledger")
    left.load("ch_sink_ledger", (FIXTURE / "ledger.jsonl").read_text().replace(old_id, topic_id))
    left.run(folder / "table.sql")
    left.load(stream, (folder / "rows.jsonl").read_text())
    own = ("dead_letters", "handover", "pending")
    execute(left.client, [create_statement(name, left.database, f"ch_sink_{name}") for name in own])
    config = config_file(
        tmp_path,
        mock_kafka,
        left.clickhouse,
        topic,
        stream,
        left.database,
        stream=stream,
        chunk_offsets=4,
        evolve="add_columns",
        truncate="apply",
    )
    checkpoint = tmp_path / "checkpoints" / stream
    checkpoint.mkdir(parents=True)
    for name, text in json.loads((folder / "checkpoint.json").read_text()).items():
        spans = [(r["partition"], r["start"], r["end"], r["lost"], r["high"]) for r in json.loads(text or "[]")]
        (checkpoint / name).write_text(json.dumps([[topic, topic_id, *span] for span in spans]))
    tokens: list[list[Any]] = []
    insert = Client.insert

    def noted(self: Client, table: str, rows: Any, **more: Any) -> int:
        if table.replace("`", "") == f"{left.database}.{stream}":
            tokens.append([more["settings"].get("insert_deduplication_token"), rows.num_rows])
        return insert(self, table, rows, **more)

    monkeypatch.setattr(Client, "insert", noted)
    stored = {str(p): offset for p, offset in left.ledger(stream).progress(topic_id).items()}
    [before] = left.rows(f"SELECT max(written) AS at FROM {left.database}.ch_sink_ledger")
    plain_job.main(str(config), OFFSETS[stream], "1")

    wanted = EXPECTED[stream]
    inserts = [[_place(token.replace(topic_id, old_id)), n] for token, n in tokens]
    expected = [
        [_place(token), n] for token, n in wanted["tokens"] if _last(token) >= stored.get(_partition([token]), 0)
    ]
    # Tasks run in a drawn order; a task's inserts are in order.
    assert sorted(inserts, key=_partition) == sorted(expected, key=_partition)
    entries = f"{left.database}.ch_sink_ledger WHERE stream = '{stream}' AND written > {before['at']} AND entry ="
    ranges = "SELECT partition, start_offset, end_offset"
    intents = left.rows(f"{ranges}, attempt FROM {entries} 'intent' ORDER BY written")
    assert [[int(value) for value in i.values()] for i in intents] == wanted["intents"]
    results = left.rows(f"{ranges}, deletes, cuts, state FROM {entries} 'result' ORDER BY written")
    assert [_result(*r.values()) for r in results] == [_result(*r.values()) for r in wanted["results"]]
    assert left.rows(f"SELECT * FROM {left.database}.{stream} FINAL ORDER BY ALL") == wanted["rows"]
    assert left.rows(f"SELECT * FROM {left.database}.{stream}_current ORDER BY ALL") == wanted["view"]
    steps = [(s.partition, s.offset) for s in left.ledger(stream).facts(BackwardStepSeen)]
    # That of partition 0 is seen again.
    assert steps == ([(1, 7), (0, 7), (0, 13), (0, 13), (1, 15)] if stream == "orders" else [])
    assert left.ledger(stream).open_schema_change() is None


def _partition(insert: list[Any]) -> str:
    """The partition in a token ``stream/topic id/partition/…``."""
    return str(insert[0]).split("/")[2]


def _last(token: str) -> int:
    """The last offset in a token ``stream/topic id/partition/first-last/…``."""
    return int(token.split("/")[3].partition("-")[2])


def _place(token: str) -> str:
    """A token without its attempt or execution: reconciling inserts of two versions have different ones."""
    return re.sub(r"/(attempt|execution)-[^/]*$", "", token)


def _record(topic: str, number: int, r: dict[str, Any]) -> Recorded:
    key, value = (None if r[name] is None else r[name].encode() for name in ("key", "value"))
    return Recorded(topic, r["partition"], 0, 1_700_000_000_000 + number, key, value, ())


def _result(partition: int, start: Any, end: Any, deletes: Any, cuts: list[Any], state: str) -> list[Any]:
    known = State.from_json(state)
    ordering = known.sources, known.base_epoch, known.floor, known.doubled, known.alone, known.strategy
    return [partition, int(start), int(end), int(deletes), [int(c) for c in cuts], ordering]
