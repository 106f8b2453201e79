"""One stream with all that belongs to it, driven by random commands, and what a model says of its table."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

from ch_sink.clickhouse import (
    ClickHouseDeadLetters,
    ClickHouseHandover,
    ClickHousePending,
    Client,
    detect,
    execute,
)
from ch_sink.clickhouse.state_table import StateTable
from ch_sink.decode import Decoder
from ch_sink.memory.ledger import MemoryLedger
from ch_sink.model.policy import policy_of
from ch_sink.ports import StoredLetter
from ch_sink.stream.partition_states import States
from ch_sink.stream.ports import StreamSettings
from ch_sink.stream.tasks import ReleaseTask
from ch_sink.table.views import view_of
from ch_sink.trust.history import loads_of
from ch_sink.trust.own_tables import OwnTables
from ch_sink.trust.refill import Refill
from ch_sink.trust.subject import Subject
from ch_sink.wiring.letters import LetterRetry
from tests.support.hand import OWN
from tests.support.local_runner import LocalRunner
from tests.support.machine_model import Copies, Known, Rows, Shop, SourceRows, Wrong, applied, differing
from tests.support.memory_stream import MemoryGroup, MemoryStreamStates, MemoryTopic
from tests.support.state_tables import create_statement
from tests.support.stream import engine_ports
from tests.support.trust import TopicInMemory, stores_of

ENGINES = OWN | {
    "timed": ("ReplacingMergeTree(_version, _is_deleted)", "_version DateTime64(9), _is_deleted UInt8"),
    "bare": ("CollapsingMergeTree(_sign)", "_sign Int8"),
}
COLLAPSING = ("collapsing", "versioned", "bare")
OWN_TABLES = ("dead_letters", "handover", "pending")


@dataclass
class Stand:
    client: Client
    database: str
    engine: str
    shop: Shop
    policy: dict[str, Any] = field(default_factory=dict)
    kept: int = 500
    chunk: int = 50_000
    on_data_loss: Literal["fail", "continue"] = "fail"

    def __post_init__(self) -> None:
        clause, own = ENGINES[self.engine]
        self.chosen = policy_of(on_bad_record="dead_letter", **self.policy)
        self.client.command(f"CREATE DATABASE {self.database}")
        self.client.command(
            f"CREATE TABLE {self.database}.t (id Int64, v Nullable(String), n Nullable(UInt8), {own}) "
            f"ENGINE = {clause} ORDER BY id SETTINGS non_replicated_deduplication_window = 1000"
        )
        execute(self.client, [create_statement(n, self.database, f"ch_sink_{n}") for n in (*OWN_TABLES, "columns")])
        table = detect(self.client, self.database, "t", self.chosen)
        self.client.command(view_of(table, ("id",)))
        self.name = f"machine/{self.database}"
        self.admin = Known(self.client, self.database, table, self.chosen)
        self.book, self.group, self.states = MemoryLedger(self.name), MemoryGroup(), MemoryStreamStates()
        self.book.keep(self.kept)
        self.topic = MemoryTopic("t", {})
        self.settings = StreamSettings(
            self.name,
            "t",
            self.chosen,
            chunk_offsets=self.chunk,
            on_data_loss=self.on_data_loss,
        )
        self.over: dict[int, tuple[int, str | None, bool]] = {}
        """Key → number of the last record that its row shows without its being read, the value, whether it is gone."""
        self.former: list[str] = []
        """Ids of former topics."""
        self.narrow = True
        self.erased: set[tuple[int, int]] = set()
        """Places of dead letters of keys that were erased."""
        self.doubtful = False
        """Until everything is read, no row can be told."""
        self.by_hand = False
        """A repair, or somebody else, has changed rows."""
        self.copies: Copies | None = None
        self.loose: set[int] = set()
        self.proves = True
        self.refresh()

    def refresh(self) -> None:
        """Show the topic as the model has it."""
        self.topic.partitions = {p: self.shop.records(p) for p in self.shop.log}
        self.topic.ends = dict(self.shop.ends)

    def drop(self) -> None:
        self.client.command(f"DROP DATABASE {self.database}")

    @property
    def letters(self) -> ClickHouseDeadLetters:
        return ClickHouseDeadLetters(self.client, self.database, "ch_sink_dead_letters", self.name, self.topic.topic_id)

    def letters_of(self, topic_id: str) -> ClickHouseDeadLetters:
        """Those of a former topic."""
        return ClickHouseDeadLetters(self.client, self.database, "ch_sink_dead_letters", self.name, topic_id)

    @property
    def pending(self) -> ClickHousePending:
        return ClickHousePending(self.client, self.database, "ch_sink_pending", self.name)

    def runner(self) -> LocalRunner:
        """A new life of the job."""
        client, database, name = self.client, self.database, self.name
        ports = engine_ports(
            client, database, "ch_sink_", name, self.topic, self.chosen,
            open_ledger=lambda: MemoryLedger(name, beside=self.book),
            admin=self.admin,
            group=self.group,
        )  # fmt: skip
        return LocalRunner(self.settings, ports)

    @property
    def subject(self) -> Subject:
        table = self.admin.table
        return Subject(
            self.client, self.settings, table, ("id",), tuple(table.source_columns), self.database,
            TopicInMemory(self.topic),  # type: ignore[arg-type]
            lambda now, want: Decoder(now, self.chosen, want_before=want),
            self.book,
            self.states,
            source=lambda: SourceRows(self.shop, self.proves),
            handover=lambda t: ClickHouseHandover(self.client, self.database, "ch_sink_handover", self.name, t),
            failed=lambda topic: self.letters.places() | {
                (p, r.offset) for own, p in self.pending.places() if own == topic for r in self.pending.open(topic, p)
            },
        )  # fmt: skip

    @property
    def refill(self) -> Refill:
        subject = self.subject
        return Refill(subject, *stores_of(subject), patience=0, settle=0)

    @property
    def own(self) -> OwnTables:
        letters, handover, pending = (StateTable(self.client, self.database, f"ch_sink_{n}") for n in OWN_TABLES)
        return OwnTables(self.client, self.name, letters, handover, pending)

    # What is there, and what has to be

    def view(self) -> Rows:
        found = self.client.rows(f"SELECT id, v FROM {self.database}.t_current")
        rows = {int(r["id"]): r["v"] for r in found}
        if len(rows) != len(found):
            raise Wrong(f"a key has several rows: {found}")
        return rows

    @property
    def applied(self) -> dict[int, int]:
        at = self.book.progress(self.topic.topic_id)
        return {p: at.get(p, 0) for p in self.shop.log}

    @property
    def touched(self) -> dict[int, int]:
        out = self.applied
        for intent in self.book.open_intents(self.topic.topic_id):
            out[intent.partition] = max(intent.end, out.get(intent.partition, 0))
        return out

    @property
    def all_read(self) -> bool:
        return self.applied == self.shop.ends and self.touched == self.applied

    @property
    def loaded(self) -> dict[int, int]:
        """Where the rows begin that the topic does not tell."""
        out: dict[int, int] = {}
        for load in loads_of(self.book, self.topic.topic_id):
            out[load.partition] = max(load.offset, out.get(load.partition, 0))
        return out

    def open_letters(self) -> set[tuple[int, int]]:
        """Places of records that were not applied, be it for good."""
        if not self.may_fail:
            return set()
        stored = self.letters.list(10_000, retried=True)
        out = {(x.letter.partition, x.letter.offset) for x in stored if x.retried is None or x.outcome == "dropped"}
        out |= self.erased
        for p, at in out:
            if at < len(self.shop.log[p]) and not (self.shop.log[p][at].bad or self.shop.log[p][at].wide):
                raise Wrong(f"the record at {at} of partition {p} became a dead letter")
        return out

    @property
    def may_fail(self) -> bool:
        return any(r.bad or r.wide for log in self.shop.log.values() for r in log)

    def right(self, at: Mapping[int, int] | None = None) -> Rows:
        """What the stream has made of the table at these offsets."""
        rows = {k: v for k, (_, v, gone) in self.over.items() if not gone}
        for r in self.shop.between({}, at if at is not None else self.applied, self.open_letters()):
            if r.empties:
                rows = {k: v for k, v in rows.items() if k in self.over and r.seq <= self.over[k][0]}
                continue
            if r.id in self.over and r.seq <= self.over[r.id][0]:
                continue
            if r.gone:
                rows.pop(r.id, None)
            else:
                rows[r.id] = r.value
        return rows

    def rebase(self, rows: Rows) -> None:
        """The table has these rows now, whatever the topic says up to here."""
        keys = {*rows, *self.shop.ever, *self.over}
        self.over = {k: (self.shop.seq, rows.get(k), k not in rows) for k in keys}

    def in_doubt(self) -> set[int]:
        """Keys of which more than one value is right at the moment."""
        if self.doubtful:
            return set(range(3000))
        read, touched = self.applied, self.touched
        ahead = self.shop.keys_of(self.shop.between(read, touched))
        again = self.shop.again if not self.all_read else set()
        return ahead | again | self.loose | self.waiting()

    def moved(self) -> set[int]:
        """Keys of changes that were sent again: without positions nothing tells that."""
        return {*self.shop.sent_again} if self.shop.sent_again and self.chosen.versions.strategy != "auto" else set()

    def waiting(self) -> set[int]:
        """Keys whose changes wait for values that come through another partition."""
        if not self.shop.pg or self.all_read:
            return set()
        found = [(p, r.offset) for p in self.shop.log for r in self.pending.open(self.topic.topic_id, p) if not r.swap]
        return {self.shop.log[p][at].id for p, at in found}

    def check(self) -> None:
        """The table is what the stream has made of it."""
        if self.all_read:
            self.shop.again.clear()
        want, got, free = self.right(), self.view(), self.in_doubt()
        if wrong := differing(want, got, free):
            raise Wrong(f"the table is {wrong} (key: right, found) at {self.applied}, touched {self.touched}")
        if self.engine in COLLAPSING:
            for r in self.client.rows(
                f"SELECT id, toInt64(sum(_sign)) AS s FROM {self.database}.t GROUP BY id HAVING s NOT IN (0, 1)"
            ):
                raise Wrong(f"signs of key {r['id']} sum to {r['s']}")

    def fold(self) -> tuple[Rows, set[int], bool]:
        """Rows that the topic shows, keys that it judges, and whether it says nothing of the others."""
        loaded = self.loaded
        low = {p: max(self.shop.low[p], loaded.get(p, 0)) for p in self.shop.log}
        rows: Rows = {}
        known: set[int] = set()
        letters: set[tuple[int, int]] = set()
        if self.narrow and self.may_fail:
            stored = self.letters.list(10_000, retried=True)
            letters = {(x.letter.partition, x.letter.offset) for x in stored} | self.erased
        for r in self.shop.between(low, self.applied, letters):
            known |= self.shop.keys_of([r])
            applied(rows, [r])
        return rows, known, any(self.shop.low.values()) or bool(loaded)

    @property
    def incomplete(self) -> bool:
        """Whether the topic lacks rows of the table: what a resync against it refuses."""
        return any(self.shop.low.values()) or bool(self.loaded)


TABLES = ("t", "ch_sink_dead_letters", "ch_sink_handover", "ch_sink_pending")


class Refused(Exception):
    """The step has no place here; nothing was done."""


def retried_letters(s: Stand, rng: Random) -> None:
    """As ``dead-letters retry`` does, of all topics; sometimes some of them only."""
    by_topic = {topic_id: s.letters_of(topic_id).list(1000) for topic_id in s.letters.topic_ids()}
    found = [(topic_id, x) for topic_id, letters in by_topic.items() for x in letters]
    if rng.random() < 0.3:
        found = rng.sample(found, (len(found) + 1) // 2)
    if not found:
        raise Refused("no letters")
    claim = s.book.claim("letters")
    try:
        for topic_id, partition in sorted({(t, x.letter.partition) for t, x in found}):
            if topic_id in s.book.topic_ids():
                chosen = [x for t, x in found if (t, x.letter.partition) == (topic_id, partition)]
                _retry(s, claim, topic_id, partition, sorted(chosen, key=lambda x: x.letter.offset))
    finally:
        s.book.release()


def _retry(s: Stand, claim: object, topic_id: str, partition: int, found: list[StoredLetter]) -> None:
    reached = s.book.progress(topic_id).get(partition, 0)
    state = States(s.book, topic_id, 0, None).at(partition, reached)
    task = ReleaseTask(s.name, "t", topic_id, partition, s.admin.table, state, claim=claim)  # type: ignore[arg-type]
    retry = LetterRetry(s.runner().open_task(task).sink, s.book, state)
    done = retry.run([x.letter for x in found])
    for outcome, offsets in (("applied", done.applied), ("superseded", done.superseded), ("waiting", done.waiting)):
        s.letters_of(topic_id).settle([(partition, offset) for offset in offsets], outcome)


def backup(s: Stand, rng: Random) -> None:
    """Keep all tables as they are."""
    for name in TABLES:
        s.client.command(f"DROP TABLE IF EXISTS {s.database}.backup_{name}")
        _copied(s, name, f"backup_{name}")
    s.copies = Copies(
        s.topic.topic_id, copy.deepcopy(s.book._book), dict(s.over), set(s.loose), s.narrow, s.doubtful,
        len(loads_of(s.book, s.topic.topic_id)), s.applied, s.touched == s.applied,
    )  # fmt: skip


def restore(s: Stand, rng: Random) -> None:
    """All tables and the ledger, or the ledger alone."""
    kept = s.copies
    if kept is None:
        backup(s, rng)
        return
    if kept.topic_id != s.topic.topic_id:
        raise Refused("the backup is of another topic")
    if any(s.shop.low[p] > at for p, at in kept.applied.items()):
        raise Refused("the topic has lost what came since")
    what = rng.choice(["all", "all", "ledger"])
    same = len(loads_of(s.book, s.topic.topic_id)) == kept.loads and not any(s.shop.low.values())
    if what != "all" and (not same or not kept.clean or s.engine in (*COLLAPSING, "timed") or kept.narrow != s.narrow):
        raise Refused(f"{what} alone cannot be restored")
    if what == "all":
        for name in TABLES:
            s.client.command(f"DROP TABLE {s.database}.{name} SYNC")
            _copied(s, f"backup_{name}", name)
        s.admin.table = s.admin.inner.detect()
    s.book._book = copy.deepcopy(kept.book)
    if what == "all":
        s.over, s.loose, s.narrow = dict(kept.over), set(kept.loose), kept.narrow
        s.doubtful = kept.doubtful
        s.shop.again |= s.shop.ever
    else:
        s.doubtful = True


def _copied(s: Stand, name: str, to: str) -> None:
    s.client.command(f"CREATE TABLE {s.database}.{to} AS {s.database}.{name}")
    # Its parts, as a backup does it: rows of collapsing tables are in an order.
    s.client.command(f"ALTER TABLE {s.database}.{to} ATTACH PARTITION ALL FROM {s.database}.{name}")
