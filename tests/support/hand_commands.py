"""One stream of hand-written events into one table, and what commands need to be carried out on it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from ch_sink.clickhouse import ClickHouseHandover, ClickHousePending, Client, detect, execute
from ch_sink.clickhouse.state_table import StateTable
from ch_sink.decode import decoder_for
from ch_sink.model.change import Records
from ch_sink.model.policy import Policy, policy_of
from ch_sink.snapshot import SourceReader
from ch_sink.table.views import view_of
from ch_sink.trust.own_tables import OwnTables
from ch_sink.trust.refill import Refill
from ch_sink.trust.subject import Options, Subject, filled_columns
from ch_sink.trust.verify import verified
from tests.support.choose import some
from tests.support.hand import APPEND, OWN, WINDOW, Event, insert, records_of
from tests.support.memory_stream import MemoryStreamStates, MemoryTopic
from tests.support.state_tables import create_statement
from tests.support.stream import Feed
from tests.support.trust import TopicInMemory, stores_of

Found = tuple[int, int, int]
"""Rows that are missing, extra and different."""
TIMED: dict[str, tuple[str, str, dict[str, str]]] = {
    "time": (
        OWN["replacing"][0], "_version DateTime64(9, 'UTC'), _is_deleted UInt8", {"version_strategy": "source_time"}
    ),
    "time-auto": (OWN["replacing"][0], "_version DateTime64(3, 'UTC'), _is_deleted UInt8", {}),
    "narrow": (OWN["replacing"][0], "_version UInt64, _is_deleted UInt8", {}),
}  # fmt: skip
"""Tables whose versions are not positions of 128 bits: engine, own columns, policy."""

MARKING = ("replacing", "sign")
"""The engines that keep a mark of a deleted row."""


def each_of(name: str, values: Iterable[str], *short: str) -> pytest.MarkDecorator:
    """A parameter's values; of which these are for the short run."""
    return pytest.mark.parametrize(name, some([(value,) for value in values], [(value,) for value in short]))


def final_by_default(client: Client) -> Client:
    """The client of a user who reads with FINAL if a query does not say so."""
    return Client(replace(client.settings, settings=(("final", "1"),)))


def records(partition: int, events: Sequence[Event], start: int = 0) -> Records:
    return records_of(events, start, partition, sent=1_700_000_000_000)


@dataclass
class Hand:
    client: Client
    database: str
    feed: Feed
    states: MemoryStreamStates = field(default_factory=MemoryStreamStates)
    source: SourceReader | None = None
    key: tuple[str, ...] = ("id",)
    condition: str = ""
    """Which rows of the table are those of the stream."""

    @property
    def subject(self) -> Subject:
        """As a command finds it that begins now."""
        feed, table = self.feed, self.feed.admin.inner.detect()
        opened: Callable[[], Any] = lambda: self.source  # noqa: E731
        return Subject(
            self.client, feed.runner.settings, table, self.key, filled_columns(table, None), self.database,
            TopicInMemory(MemoryTopic(feed.topic, feed.records)),  # type: ignore[arg-type]
            lambda now, want: decoder_for(now, feed.policy, want_before=want),
            feed.book,
            self.states,
            source=opened,
            handover=lambda t: ClickHouseHandover(self.client, self.database, "ch_sink_handover", feed.name, t),
            condition=self.condition,
            failed=lambda _: feed.letters_of.places() | self._waiting,
        )  # fmt: skip

    @property
    def _waiting(self) -> set[tuple[int, int]]:
        pending = ClickHousePending(self.client, self.database, "ch_sink_pending", self.feed.name)
        return {(p, record.offset) for topic, p in pending.places() for record in pending.open(topic, p)}

    @property
    def refill(self) -> Refill:
        subject = self.subject
        return Refill(subject, *stores_of(subject), patience=0)

    @property
    def own(self) -> OwnTables:
        letters, handover, pending = (
            StateTable(self.client, self.database, f"ch_sink_{n}") for n in ("dead_letters", "handover", "pending")
        )
        return OwnTables(self.client, self.feed.name, letters, handover, pending)

    def read(self, *chunks: tuple[int, int]) -> None:
        for p, end in chunks:
            self.feed.chunk(p, end)
        self.feed.runner.stop()

    def read_all(self) -> None:
        """The job starts, and reads what is left."""
        try:
            self.feed.runner.catch_up()
        finally:
            self.feed.runner.stop()

    def topic(self, *parts: Sequence[Event]) -> None:
        """Another content of the topic."""
        self.feed.records = {p: records(p, events) for p, events in enumerate(parts)}
        self.feed.at = {p: self.feed.at.get(p, 0) for p in self.feed.records}
        log = self.feed.runner.ports.topics
        assert isinstance(log, MemoryTopic)
        log.partitions = dict(self.feed.records)
        log.ends = {p: len(r) for p, r in self.feed.records.items()}
        self.feed.ends = log.ends

    def view(self) -> list[tuple[Any, ...]]:
        return sorted(tuple(r.values()) for r in self.client.rows(f"SELECT id, v FROM {self.database}.t_current"))

    def stored(self) -> list[tuple[Any, ...]]:
        return [tuple(r.values()) for r in self.client.rows(f"SELECT * FROM {self.database}.t ORDER BY ALL")]

    def verify(self) -> Found:
        with verified(self.subject, Options(patience=0)) as done:
            r = done.report
            return r.missing, r.extra, r.different

    def verify_source(self) -> Found:
        with verified(self.subject, Options(patience=0, against="source")) as done:
            r = done.report
            return r.missing, r.extra, r.different


def hand(client: Client, database: str, engine: str, *parts: Sequence[Event], **policy: Any) -> Hand:
    """A stream of these events, a list for each partition, that has read nothing yet."""
    return made(client, database, OWN.get(engine, APPEND), policy_of(on_bad_record="fail", **policy), parts)


def timed(client: Client, database: str, engine: str, *parts: Sequence[Event]) -> Hand:
    """The same with a table of `TIMED`."""
    clause, own, policy = TIMED[engine]
    return made(client, database, (clause, own), policy_of(on_bad_record="fail", **policy), parts)


def made(
    client: Client,
    database: str,
    kind: tuple[str, str],
    chosen: Policy,
    parts: Sequence[Sequence[Event]],
    order: str = "ORDER BY id",
) -> Hand:
    """The same with a table of this engine clause and own columns."""
    clause, own = kind
    columns = ", ".join(["id Int64", "v Nullable(String)", *([own] if own else [])])
    client.command(f"CREATE TABLE {database}.t ({columns}) ENGINE = {clause} {order} {WINDOW}, allow_nullable_key = 1")
    execute(
        client,
        [create_statement(n, database, f"ch_sink_{n}") for n in ("dead_letters", "handover", "pending", "columns")],
    )
    table = detect(client, database, "t", chosen)
    client.command(view_of(table, ("id",)))
    feed = Feed(client, database, table, "hand", "t", chosen, {p: records(p, e) for p, e in enumerate(parts)})
    return _hand(client, database, feed)


def _hand(client: Client, database: str, feed: Feed) -> Hand:
    feed.admin.looked = True
    return Hand(client, database, feed)


def with_policy(it: Hand, **policy: Any) -> Hand:
    """The job is started again with other settings."""
    chosen = policy_of(on_bad_record="fail", **policy)
    table = detect(it.client, it.database, "t", chosen)
    feed = Feed(it.client, it.database, table, "hand", "t", chosen, it.feed.records, again=it.feed)
    feed.at = dict(it.feed.at)
    return _hand(it.client, it.database, feed)


def recreated(
    client: Client,
    database: str,
    engine: str,
    monkeypatch: pytest.MonkeyPatch,
    more: Sequence[Event],
    **policy: Any,
) -> Hand:
    """The stream has read the topic's only change; then the topic was recreated, with that row and these changes."""
    first = insert(9, "x", 50)
    it = hand(client, database, engine, [first], **policy)
    it.read((0, 1))
    made_anew(it, monkeypatch, replace(first, value={**(first.value or {}), "op": "r"}), *more)
    return it


def made_anew(it: Hand, monkeypatch: pytest.MonkeyPatch, *events: Event) -> None:
    """The topic was deleted and created, with these events."""
    monkeypatch.setattr(MemoryTopic, "topic_id", "second")
    it.topic(events)
    it.feed.at = {0: 0}
