"""`resync` and `bootstrap` on every engine: the table equals its source, whatever the stream had made of it before."""

import os
import random
import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from ch_sink.clickhouse import ClickHouseHandover, ClickHousePending, Client
from ch_sink.errors import ChSinkError, SourceError, StreamFailed
from ch_sink.ports import Alive, Request
from ch_sink.snapshot.reader import Value
from ch_sink.stream.claims import born
from ch_sink.testing.memory_states import MemoryStreamStates
from ch_sink.trust.bootstrap import bootstrapped
from ch_sink.trust.refill import Refill
from ch_sink.trust.resync import resynced
from ch_sink.trust.successor import SUFFIX
from tests.support.busy import ENGINES, feed_of
from tests.support.choose import some
from tests.support.fixtures import TruthTable, read_truth
from tests.support.recorded import equal
from tests.support.stream import Feed
from tests.support.trust import subject_of

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
        at = [self.truth.names.index(name) for name in names]
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
        stream = self.feed.name
        subject = subject_of(self.client, self.database, self.feed, "mariadb-busy-json_plain", ("id", "k"))
        pending = ClickHousePending(self.client, self.database, "ch_sink_pending", stream)
        handover = ClickHouseHandover(self.client, self.database, "ch_sink_handover", stream, subject.table)
        return Refill(replace(subject, source=lambda: self.source), self.states, pending, handover, patience=0)

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


@pytest.mark.parametrize("engine", chosen("replacing", "collapsing", "append"))
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


def test_a_stream_that_is_far_behind_is_left_alone(client: Client, database: str) -> None:
    it = case(client, database, "replacing", 0.4)
    it.a_job_has_the_stream()
    with pytest.raises(StreamFailed, match="offsets behind"):
        resynced(it.refill, apply=True)
    assert it.left_over() == []


@pytest.mark.parametrize("engine", chosen("collapsing"))
def test_without_a_job_the_ledger_goes_along(client: Client, database: str, engine: str) -> None:
    it = case(client, database, engine, 0.4)
    lose_deletes(it)
    resynced(it.refill, apply=True)
    assert it.differs() == []
    topic = it.refill.subject.topic.state("")
    assert it.refill.subject.reached(topic.topic_id).applied == topic.high


@pytest.mark.parametrize("engine", chosen("versioned-collapsing"))
def test_the_topic_can_be_the_source(client: Client, database: str, engine: str) -> None:
    it = case(client, database, engine, 1.0)
    lose_deletes(it)
    resynced(it.refill, apply=True, against="topic")
    assert it.differs() == []


@pytest.mark.parametrize("engine", chosen("sign-replacing", "versioned-collapsing"))
def test_an_empty_table_is_filled_and_the_stream_goes_on(client: Client, database: str, engine: str) -> None:
    it = case(client, database, engine, 0)
    it.feed.records = {p: records.slice(0, len(records) // 2) for p, records in it.feed.records.items()}
    done = bootstrapped(it.refill, apply=True)
    assert done.rows == len(it.source.truth.rows)
    assert it.differs() == []  # nothing that the topic held is applied
    with pytest.raises(StreamFailed, match="has rows"):
        bootstrapped(it.refill, apply=True)


def test_a_dry_run_says_how_many_rows_and_writes_nothing(client: Client, database: str) -> None:
    it = case(client, database, "replacing", 0.4)
    plan = resynced(it.refill, apply=False)
    assert (plan.applied, plan.rows) == (False, len(it.source.truth.rows))
    assert it.left_over() == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"twice": True}, "is not unique in the source"),
        ({"breaks": True}, "the source went away"),
        ({"names": {"owner": "holder"}}, "has no column 'owner'"),
    ],
)
def test_a_run_that_fails_leaves_the_table_and_no_other(
    client: Client, database: str, change: dict[str, object], said: str
) -> None:
    it = case(client, database, "replacing", 0.4)
    before = it.rows("SELECT count(), sum(sipHash64(*)) FROM {}")
    it.source = replace(it.source, **change)
    with pytest.raises(ChSinkError, match=said):
        resynced(it.refill, apply=True)
    assert it.rows("SELECT count(), sum(sipHash64(*)) FROM {}") == before
    assert it.left_over() == []
    assert it.states.read([it.feed.name])[it.feed.name].request is None


def test_what_a_killed_run_left_is_found_and_ended(client: Client, database: str) -> None:
    it = case(client, database, "collapsing", 0.4)
    said: list[str] = []
    client.command(f"CREATE TABLE {database}.acct{SUFFIX} AS {database}.acct")
    it.states.ask({it.feed.name: Request("pause", "ch_sink resync by me@here", 1.0)})
    resynced(it.refill, apply=True, say=said.append)
    assert it.differs() == []
    assert any("which an earlier run left" in text for text in said)
    assert it.states.read([it.feed.name])[it.feed.name].request.wanted == "resume"


def test_a_stream_that_was_paused_stays_so(client: Client, database: str) -> None:
    it = case(client, database, "replacing", 0.4)
    it.states.ask({it.feed.name: Request("pause", "me@here", 1.0)})
    resynced(it.refill, apply=True)
    assert it.states.read([it.feed.name])[it.feed.name].request.wanted == "pause"
