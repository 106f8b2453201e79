"""`resync` on every engine: the table equals its source, whatever the stream had made of it before."""

import hashlib
import os
import random
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import pytest

from ch_sink.clickhouse import Client, detect
from ch_sink.errors import ChSinkError, SourceError, StreamFailed, TableError
from ch_sink.memory import MemoryLedger
from ch_sink.model.policy import ColumnPolicy, Policy
from ch_sink.ports import Alive, FinishedRange, Request
from ch_sink.snapshot.reader import Value
from ch_sink.stream.claims import born
from ch_sink.trust.load import every_column, load
from ch_sink.trust.refill import Refill
from ch_sink.trust.resync import resynced
from ch_sink.trust.subject import Options
from ch_sink.trust.successor import SUFFIX
from ch_sink.trust.topic import StoppableTopic
from ch_sink.trust.verify import verified
from ch_sink.wiring.process import Stopped
from tests.support.busy import ENGINES, feed_of
from tests.support.choose import some
from tests.support.fixtures import TruthTable, read_truth
from tests.support.memory_stream import MemoryStreamStates
from tests.support.recorded import equal
from tests.support.stream import Feed
from tests.support.trust import stores_of, subject_of

pytestmark = pytest.mark.integration


def chosen(*engines: str) -> list[Any]:
    """All engines; these in the short run."""
    return some([(engine,) for engine in (*ENGINES, "append")], [(engine,) for engine in engines])


@dataclass
class FinalRows:
    """A source that has the rows of the recorded truth."""

    truth: TruthTable
    names: dict[str, str] = field(default_factory=dict)
    twice: bool = False
    breaks: bool = False
    settles: int = 0
    then: Callable[[], None] = lambda: None
    """What happens once the rows were read."""

    def position(self) -> int:
        self.then()
        return 0

    def settled(self, patience: float) -> int:
        return self.settles

    def columns(self) -> dict[str, str]:
        return {self.names.get(c["name"], c["name"]): str(c["type"]) for c in self.truth.columns}

    def rows(self, names: Sequence[str], size: int) -> Iterator[list[tuple[Value, ...]]]:
        known = {new: old for old, new in self.names.items()}
        at = [self.truth.names.index(known.get(name, name)) for name in names]
        rows = [tuple(row[i] for i in at) for row in self.truth.rows]
        yield rows[: len(rows) // 2]
        if self.breaks:
            raise SourceError("the source went away")
        yield [*rows[len(rows) // 2 :], *(rows[:1] if self.twice else [])]

    def close(self) -> None:
        pass


@dataclass
class Case:
    client: Client
    database: str
    feed: Feed
    states: MemoryStreamStates = field(default_factory=MemoryStreamStates)
    source: FinalRows = field(default_factory=lambda: FinalRows(read_truth("mariadb-busy")["acct"]))

    @property
    def refill(self) -> Refill:
        subject = subject_of(self.client, self.database, self.feed, "mariadb-busy-json_plain", ("id", "k"))
        subject = replace(subject, source=lambda: self.source, states=self.states)
        return Refill(subject, *stores_of(subject), patience=0)

    def a_job_has_the_stream(self) -> None:
        alive = Alive("other", socket.gethostname(), os.getpid(), born(os.getpid()))
        self.states.beat({self.feed.name: alive})

    def goes_on(self) -> None:
        self.feed.run()
        self.feed.runner.stop()

    def rows(self, sql: str) -> list[tuple[object, ...]]:
        return [tuple(r.values()) for r in self.client.rows(sql.format(f"{self.database}.acct"))]

    def differs(self) -> list[str]:
        return equal(self.client, self.database, "mariadb-busy", "mariadb", "acct")

    def left_over(self) -> list[tuple[object, ...]]:
        return self.rows(f"SELECT name FROM system.tables WHERE database = '{self.database}' AND name LIKE '%{SUFFIX}'")


def case(client: Client, database: str, engine: str, share: float) -> Case:
    """The stream has read this share of its topic."""
    feed = feed_of(client, database, "mariadb", "acct", engine)
    rng = random.Random(engine)
    for p, end in feed.ends.items():
        if at := int(end * share):
            feed.chunk(p, at)
    assert rng
    feed.runner.stop()
    return Case(client, database, feed)


def lose_deletes(it: Case) -> None:
    """Rows that the source does not have."""
    sql = "INSERT INTO {0} SELECT * REPLACE(id + 900000000 AS id) FROM {0} ORDER BY id LIMIT 40"
    it.client.command(sql.format(f"{it.database}.acct"))


@pytest.mark.parametrize("engine", chosen("collapsing"))
def test_a_table_is_filled_anew_behind_its_running_stream(client: Client, database: str, engine: str) -> None:
    it = case(client, database, engine, 0.4)
    it.a_job_has_the_stream()
    lose_deletes(it)
    it.source = replace(it.source, then=it.goes_on)
    done = resynced(it.refill, apply=True)
    assert done.applied
    assert it.differs() == []
    assert it.rows("SELECT count() FROM {} WHERE id > 800000000") == [(0,)]
    assert it.states.read([it.feed.name])[it.feed.name].request.wanted == "resume"
    assert it.left_over() == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("against", ["source", "topic"])
def test_a_run_that_is_to_stop_leaves_nothing(
    client: Client, database: str, against: Literal["source", "topic"]
) -> None:
    it = case(client, database, "replacing", 1.0)
    lose_deletes(it)

    def stop() -> None:
        if it.left_over():
            raise Stopped

    subject = replace(it.refill.subject, check=stop)
    subject = replace(subject, topic=StoppableTopic(subject.topic, stop))
    with pytest.raises(Stopped):
        resynced(replace(it.refill, subject=subject), apply=True, against=against)
    assert it.left_over() == []
    assert it.rows("SELECT count() FROM {} WHERE id > 800000000") == [(40,)]


def test_a_stream_that_is_far_behind_is_left_alone(client: Client, database: str) -> None:
    it = case(client, database, "replacing", 0.05)
    it.a_job_has_the_stream()
    with pytest.raises(StreamFailed, match="offsets behind"):
        resynced(it.refill, apply=True)
    assert it.left_over() == []


@pytest.mark.long
@pytest.mark.parametrize("engine", chosen("append"))
def test_without_a_job_the_ledger_goes_along(client: Client, database: str, engine: str) -> None:
    it = case(client, database, engine, 0.4)
    lose_deletes(it)
    resynced(it.refill, apply=True)
    assert it.differs() == []
    topic = it.refill.subject.topic.state("")
    assert it.refill.subject.reached(topic.topic_id).applied == topic.high


@pytest.mark.parametrize("engine", chosen())
def test_the_topic_can_be_the_source(client: Client, database: str, engine: str) -> None:
    it = case(client, database, engine, 1.0)
    lose_deletes(it)
    resynced(it.refill, apply=True, against="topic")
    assert it.differs() == []


def filled_on_the_way(client: Client, database: str, engine: str) -> Case:
    """A table that was filled from the source when the topic held two thirds of its records; all are read now."""
    it = case(client, database, engine, 0.4)
    whole = it.feed.records
    it.feed.records = {p: records.slice(0, len(records) * 2 // 3) for p, records in whole.items()}
    resynced(it.refill, apply=True)
    it.feed.records = whole
    it.goes_on()
    return it


@pytest.mark.long
@pytest.mark.parametrize("engine", chosen("replacing", "collapsing"))
def test_the_topic_judges_what_has_changed_since_the_table_was_filled(
    client: Client, database: str, engine: str
) -> None:
    it = filled_on_the_way(client, database, engine)
    lose_deletes(it)  # rows of which the topic knows nothing: the source may have had them
    with verified(it.refill.subject, Options()) as done:
        assert (done.report.missing, done.report.extra, done.report.different) == (0, 0, 0)
        assert 40 < done.report.unknown < done.report.rows
    with pytest.raises(StreamFailed, match="was filled from the database"):
        resynced(it.refill, apply=True, against="topic")
    if engine == "replacing":
        newest = "SELECT * REPLACE(_version + 2 AS _version, 1 AS _is_deleted) FROM {0} ORDER BY _version DESC LIMIT 1"
        it.client.command(("INSERT INTO {0} " + newest).format(f"{it.database}.acct"))
        with verified(it.refill.subject, Options()) as done:
            assert (done.report.missing, done.report.extra, done.report.different) == (1, 0, 0)


@pytest.mark.parametrize("engine", chosen("versioned-collapsing"))
def test_an_empty_table_is_filled_and_the_stream_goes_on(client: Client, database: str, engine: str) -> None:
    it = case(client, database, engine, 0)
    it.feed.records = {p: records.slice(0, len(records) // 2) for p, records in it.feed.records.items()}
    done = resynced(it.refill, apply=True)
    assert done.rows == len(it.source.truth.rows)
    assert it.differs() == []  # nothing that the topic held is applied
    topic = it.refill.subject.topic.state("")
    assert it.refill.subject.reached(topic.topic_id).applied == topic.high == done.start


@pytest.mark.parametrize("against", ["source", pytest.param("topic", marks=pytest.mark.long)])
def test_a_first_load_into_a_table_with_rows_is_refused(
    client: Client, database: str, against: Literal["source", "topic"]
) -> None:
    it = case(client, database, "replacing", 0)
    client.command(f"INSERT INTO {database}.acct (id) VALUES (1)")
    with pytest.raises(StreamFailed, match="has rows, and stream"):
        resynced(it.refill, apply=True, against=against)


@pytest.mark.parametrize("engine", ["collapsing", pytest.param("replacing", marks=pytest.mark.long)])
def test_a_topic_of_which_the_stream_has_read_nothing_fills_an_empty_table(
    client: Client, database: str, engine: str
) -> None:
    """As one that was created again, with a snapshot, beside a table that was."""
    it = case(client, database, engine, 0)
    whole = it.feed.records
    it.feed.records = {p: records.slice(0, len(records) // 2) for p, records in whole.items()}
    done = resynced(it.refill, apply=True, against="topic")
    assert done.rows > 0
    it.feed.records = whole
    it.feed.run()
    assert it.differs() == []


OTHERS = {
    "order": ("_is_deleted UInt8", "ReplacingMergeTree(_version, _is_deleted) PARTITION BY k % 3 ORDER BY (k, id)"),
    "engine": ("_sign Int8", "VersionedCollapsingMergeTree(_sign, _version) ORDER BY (id, k)"),
}
SHAPES = {
    "order": ("ORDER BY: (id, k) -> (k, id)", "PARTITION BY: none -> k % 3"),
    "engine": ("engine: ReplacingMergeTree(_version, _is_deleted) -> VersionedCollapsingMergeTree(_sign, _version)",),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("kind", "against", "share"),
    [
        ("order", "source", 0),
        *some(
            [("order", "source", 0.6), ("engine", "source", 0.6), ("engine", "topic", 0.6)], [("engine", "topic", 0.6)]
        ),
    ],
)
def test_another_table_is_filled_and_nothing_is_exchanged(
    client: Client, database: str, kind: str, against: Literal["source", "topic"], share: float
) -> None:
    it = case(client, database, "replacing", share)
    own, clause = OTHERS[kind]
    columns = [f"{c.name} {c.type}" for c in it.refill.subject.table.columns if c.name != "_is_deleted"]
    client.command(f"CREATE TABLE {database}.other ({', '.join([*columns, own])}) ENGINE = {clause}")
    before = it.rows("SELECT count(), sum(sipHash64(*)) FROM {}")
    plan = resynced(it.refill, apply=False, against=against, into="other")
    assert (plan.applied, plan.shape) == (False, SHAPES[kind])
    done = resynced(it.refill, apply=True, against=against, into="other")
    assert (done.table, done.rows) == (f"{database}.other", len(it.source.truth.rows))
    assert it.rows("SELECT count(), sum(sipHash64(*)) FROM {}") == before
    assert it.left_over() == []
    with pytest.raises(StreamFailed, match="other` is not empty"):
        resynced(it.refill, apply=True, against=against, into="other")


def test_another_table_without_the_key_in_its_order_is_refused(client: Client, database: str) -> None:
    it = case(client, database, "replacing", 0.0)
    other = "ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY id"
    client.command(f"CREATE TABLE {database}.other AS {database}.acct {other}")
    with pytest.raises(TableError, match="lacks the key column k"):
        resynced(it.refill, apply=False, into="other")


def test_another_table_is_empty_again_after_a_run_that_failed(client: Client, database: str) -> None:
    it = case(client, database, "replacing", 0.05)
    client.command(f"CREATE TABLE {database}.other AS {database}.acct")
    it.source = replace(it.source, breaks=True)
    with pytest.raises(SourceError, match="went away"):
        resynced(it.refill, apply=True, into="other")
    assert it.rows(f"SELECT count() FROM {database}.other") == [(0,)]


def test_a_dry_run_says_how_many_rows_and_writes_nothing(client: Client, database: str) -> None:
    it = case(client, database, "replacing", 0.05)
    plan = resynced(it.refill, apply=False)
    assert (plan.applied, plan.rows) == (False, len(it.source.truth.rows))
    assert it.left_over() == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param({"twice": True}, "is not unique in the source", marks=pytest.mark.long),
        ({"breaks": True}, "the source went away"),
        ({"names": {"owner": "holder"}}, "(?s)has no column 'owner'.*name it in columns.exclude"),
    ],
)
def test_a_run_that_fails_leaves_the_table_and_no_other(
    client: Client, database: str, change: dict[str, object], said: str
) -> None:
    it = case(client, database, "replacing", 0.05)
    before = it.rows("SELECT count(), sum(sipHash64(*)) FROM {}")
    it.source = replace(it.source, **change)
    with pytest.raises(ChSinkError) as failed:
        resynced(it.refill, apply=True)
    assert re.search(said, f"{failed.value}\n{failed.value.hint}")
    assert it.rows("SELECT count(), sum(sipHash64(*)) FROM {}") == before
    assert it.left_over() == []
    assert it.states.read([it.feed.name])[it.feed.name].request is None


def test_columns_that_the_stream_does_not_fill_are_named(client: Client, database: str) -> None:
    it = case(client, database, "replacing", 0.05)
    client.command(f"ALTER TABLE {database}.acct ADD COLUMN seen DateTime DEFAULT now()")
    it.feed.admin.table = detect(client, database, "acct", it.feed.policy)
    subject = replace(it.refill.subject, columns=tuple(c for c in it.refill.subject.columns if c.name != "seen"))
    said: list[str] = []
    every_column(subject.table, subject.columns, subject.key, None, it.feed.policy, it.source, said.append)  # type: ignore[arg-type]
    assert said == ["seen: not filled by the stream, left to the default"]


@pytest.mark.long
def test_what_a_killed_run_left_is_found_and_ended(client: Client, database: str) -> None:
    it = case(client, database, "collapsing", 0.4)
    said: list[str] = []
    client.command(f"CREATE TABLE {database}.acct{SUFFIX} AS {database}.acct")
    it.states.ask({it.feed.name: Request("pause", "ch_sink resync by me@here", 1.0)})
    resynced(it.refill, apply=True, say=said.append)
    assert it.differs() == []
    assert any("which an earlier run left" in text for text in said)
    assert it.states.read([it.feed.name])[it.feed.name].request.wanted == "resume"


@pytest.mark.long
def test_a_stream_that_was_paused_stays_so(client: Client, database: str) -> None:
    it = case(client, database, "replacing", 0.4)
    it.states.ask({it.feed.name: Request("pause", "me@here", 1.0)})
    resynced(it.refill, apply=True)
    assert it.states.read([it.feed.name])[it.feed.name].request.wanted == "pause"


class Killed(BaseException):
    """The process ends."""


class Ending(MemoryLedger):
    """A ledger whose owner is killed before it tells where the stream goes on."""

    def results(self, results: Sequence[FinishedRange]) -> None:
        raise Killed


@pytest.mark.long
def test_a_first_load_that_was_killed_before_the_ledger_knew_is_ended_by_the_next(
    client: Client, database: str
) -> None:
    it = case(client, database, "collapsing", 0)
    client.command(f"ALTER TABLE {database}.acct MODIFY COMMENT 'orders of the shop'")
    refill, book = it.refill, it.feed.book
    dying = replace(refill, subject=replace(refill.subject, ledger=Ending(it.feed.name, beside=book)))
    with pytest.raises(Killed):
        resynced(dying, apply=True)
    assert it.differs() == []
    it.feed.admin.looked = True  # the table is described anew, as by a job that starts now
    with pytest.raises(StreamFailed, match="before it was recorded"):
        it.feed.run()  # the stream was resumed by hand
    it.feed.runner.stop()
    said: list[str] = []
    done = resynced(it.refill, apply=True, say=said.append)
    topic = refill.subject.topic.state("")
    assert done.applied
    assert refill.subject.reached(topic.topic_id).applied == topic.high
    assert "killed before it was recorded" in said[0]
    assert it.left_over() == []
    comment = f"SELECT comment FROM system.tables WHERE database = '{database}' AND name = 'acct'"
    assert it.rows(comment) == [("orders of the shop",)]


def test_a_table_that_would_lose_rows_is_refused(client: Client, database: str) -> None:
    it = case(client, database, "replacing", 0.05)
    for change, said in (({"key": ()}, "has no key"), ({"condition": "region = 'eu'"}, "rows of several topics")):
        with pytest.raises(StreamFailed, match=said):
            resynced(replace(it.refill, subject=replace(it.refill.subject, **change)), apply=True)
    client.command(
        f"CREATE MATERIALIZED VIEW {database}.mv ENGINE = MergeTree ORDER BY id AS SELECT id FROM {database}.acct"
    )
    with pytest.raises(StreamFailed, match=r"feeds the materialized view .*\.mv"):
        resynced(it.refill, apply=True)


@pytest.mark.parametrize(("owner", "sent"), [("owner", "owner"), ("the owner", "the_owner")], ids=["as it is", "Avro"])
def test_columns_are_named_masked_and_added_as_the_stream_does_it(
    client: Client, database: str, owner: str, sent: str
) -> None:
    """``sent``: the column's name in events, which the connector may adjust for Avro."""
    client.command(
        f"CREATE TABLE {database}.people (id Int64, k Int64, tenant String, holder Nullable(String), "
        "n Nullable(Int32), _version UInt128, _is_deleted UInt8) "
        "ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY (id, k)"
    )
    chosen = ColumnPolicy(rename=((sent, "holder"),), mask=((sent, "sha256"),), add=(("tenant", "'eu'"),))
    policy = Policy(columns=chosen)
    table = detect(client, database, "people", policy)
    truth = read_truth("mariadb-busy")["acct"]
    source = FinalRows(truth, names={"owner": owner})
    made = every_column(table, table.source_columns, ("id", "k"), None, policy, source)
    assert load(client, table, made, source, 5) == len(truth.rows)
    at = [truth.names.index(name) for name in ("id", "k", "owner", "n")]
    wanted = {
        (
            int(row[at[0]]),
            int(row[at[1]]),
            "eu",
            None if row[at[2]] is None else hashlib.sha256(row[at[2]].encode()).hexdigest(),
            None if row[at[3]] is None else int(row[at[3]]),
        )
        for row in truth.rows
    }
    found = client.rows(f"SELECT id, k, tenant, holder, n FROM {database}.people")
    assert {tuple(row.values()) for row in found} == wanted
