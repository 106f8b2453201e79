"""Plans: a stream of hand-written events, and what is done to it and its table, one plan a line.

    ENGINES OPTIONS | EVENTS | STEP; STEP; …

``ENGINES`` is a group of `GROUPS` or an engine; some of every fifteenth plan run in ``make test``, for the
engines in parentheses and one choice of options; all of them by night.
``OPTIONS`` are policies and shapes (`_configured`); ``a/b`` makes a plan of each. ``EVENTS`` are those
of `tests.support.plan_words`. A step is a method of `Plan` or one of `PLAIN`; ``refused TEXT:`` before a step expects
that it is refused with this text.
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from ch_sink.clickhouse import Client
from ch_sink.errors import DataLoss, StreamFailed
from ch_sink.model.policy import policy_of
from ch_sink.ports import CLOCKS, TableRefilled
from ch_sink.table.views import view_of
from ch_sink.trust.biography import Biography
from ch_sink.trust.one_key import erased, life_of
from ch_sink.trust.purge import purged
from ch_sink.trust.repair import repaired
from ch_sink.trust.resync import resynced
from ch_sink.trust.subject import Options
from ch_sink.trust.verify import verified
from tests.support.choose import some
from tests.support.hand import APPEND, OWN, key
from tests.support.hand_commands import MARKING, TIMED, Hand, final_by_default, made, with_policy
from tests.support.hand_steps import LACKS, Rows, backup, empty, forget, lose, plant, put_back, restore, retried, widen
from tests.support.memory_stream import MemoryTopic
from tests.support.plan_words import parts, rows_of

GROUPS = {
    "any": (*OWN,), "marking": MARKING, "collapses": ("collapsing", "versioned"), "timed": (*TIMED,),
    "every": (*OWN, "append"),
}  # fmt: skip
REFUSED = {
    "lost": (LACKS, "ch_sink resync CONFIG --apply`"), "lost some": (LACKS, "ch_sink repair CONFIG --apply`"),
    "lost rows without a key": (LACKS, "ch_sink resync CONFIG --against topic --apply`"),
}  # fmt: skip
POLICIES: dict[str, dict[str, Any]] = {
    "auto": {}, "offsets": {"version_strategy": "kafka_offset"}, "letters": {"on_bad_record": "dead_letter"},
    "shared": {"add": (("place", "'eu'"),), "source_columns": ("place",)}, "truncates": {"truncate": "apply"},
    "ignores": {"truncate": "ignore"},
    "unkeyed": {"key_columns": ("id",)}, "clamp": {"out_of_range": "clamp"},
}  # fmt: skip
PLAIN: dict[str, Callable[[Hand], None]] = {
    "forget": forget, "empty": empty, "backup": backup, "restore": restore, "widen": widen,
    "merge": lambda it: it.client.command(f"OPTIMIZE TABLE {it.database}.t FINAL"),
}  # fmt: skip
"""Steps that are said in one word."""


@dataclass(frozen=True)
class Line:
    """A plan for one engine."""

    number: int
    engine: str
    options: tuple[str, ...]
    events: str
    steps: str

    def __str__(self) -> str:
        return "-".join((f"line-{self.number}", self.engine, *self.options))


def plans(path: Path) -> list[Any]:
    """All plans of a file as parameters."""
    every: list[Line] = []
    short: list[Line] = []
    written = 0
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if text and not text.startswith("#"):
            head, events, steps = (part.strip() for part in text.split("|"))
            found = re.match(r"([\w-]+)(?:\((.*?)\))?(.*)", head)
            assert found is not None, text
            engines = GROUPS.get(found[1], (found[1],))
            chosen = found[2].split() if found[2] is not None else engines
            options = list(product(*(o.split("/") for o in found[3].split())))
            for engine, combined in product(engines, options):
                every.append(Line(number, engine, combined, events, steps))
                in_turn = written % 15 == 0 and combined == options[written // 15 % len(options)]
                short += [every[-1]] if engine in chosen and in_turn else []
            written += 1
    return some([(one,) for one in every], [(one,) for one in short])


def run(client: Client, database: str, line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(_configured(client, database, line), line.engine, monkeypatch, keyless="keyless" in line.options)
    for step in filter(None, (step.strip() for step in line.steps.split(";"))):
        try:
            plan.step(step)
        except AssertionError as error:
            raise AssertionError(f"{step}: {error}") from error


def _configured(client: Client, database: str, line: Line) -> Hand:
    """A stream that has read nothing yet.

    ``n``: a column of small numbers; ``narrow``: versions of 64 bits; ``stamped``: a column with the time of the
    insert, ``by-stamp``: by which the table is sorted, too; ``keyless``: the table has no key; ``unkeyed``: records
    have none; ``shared``: the table has rows of other topics, too; ``few``: the ledger keeps the states of two results.
    """
    clause, own, more = TIMED[line.engine] if line.engine in TIMED else (*OWN.get(line.engine, APPEND), {})
    policy: dict[str, Any] = {"on_bad_record": "fail", **more}
    order = "ORDER BY id"
    for option in line.options:
        policy |= POLICIES.get(option, {})
        if option == "narrow":
            own = own.replace("UInt128", "UInt64")
        elif option == "n":
            own = f"n Nullable(UInt8), {own}"
        elif option == "stamped":
            own = f"at DateTime64(9) DEFAULT now64(9), {own}"
        elif option == "by-stamp":
            order = "ORDER BY (id, at)"
        elif option == "shared":
            own, order = f"place String, {own}", "ORDER BY (place, id)"
        elif option == "moves":
            order = "ORDER BY (id, v) PRIMARY KEY id"
        elif option == "partitioned":
            order = "PARTITION BY v ORDER BY id"
        elif option == "final":
            client = final_by_default(client)
    keyless = "keyless" in line.options
    events = parts(line.events, keyless=keyless or "unkeyed" in line.options)
    it = made(client, database, (clause, own), policy_of(**policy), events, order)
    if "few" in line.options:
        it.feed.book.keep(2)
    if "shared" in line.options:
        it.key, it.condition = ("place", "id"), "place = 'eu'"
    if keyless:
        it.key = ()
        client.command(view_of(it.feed.admin.table, ()))
    return it


@dataclass
class Plan:
    it: Hand
    engine: str
    monkeypatch: pytest.MonkeyPatch
    keyless: bool = False
    kept: Any = None

    def step(self, text: str) -> None:
        """``refused TEXT: STEP`` expects that a step is refused."""
        if text.startswith("refused "):
            why, _, inner = text.removeprefix("refused ").rpartition(": ")
            why, hint = REFUSED.get(why, (why, ""))
            with pytest.raises((DataLoss, StreamFailed), match=why) as caught:
                self.step(inner)
            assert hint in str(caught.value.hint)
            return
        name, *words = text.split()
        if name in PLAIN:
            PLAIN[name](self.it)
            return
        getattr(self, "do_" + name.replace("-", "_"))(*words)

    # The stream and its topic

    def do_read(self, *ends: str) -> None:
        """What is left, or chunks up to offsets: ``5`` of the first partition, ``1:5`` of the second, ``5..9``."""
        if not ends:
            self.it.read_all()
            return
        reached = self.it.feed.book.progress(self.topic_id)
        self.it.feed.at = {p: reached.get(p, 0) for p in self.it.feed.records}
        for end in ends:
            partition, _, offsets = end.rpartition(":")
            first, _, last = offsets.partition("..")
            self.it.read(*((int(partition or 0), offset) for offset in range(int(first), int(last or first) + 1)))

    @property
    def topic_id(self) -> str:
        log = self.it.feed.runner.ports.topics
        assert isinstance(log, MemoryTopic)
        return log.topic_id

    def do_topic(self, *words: str) -> None:
        """The topic holds these events now."""
        self.it.topic(*parts(" ".join(words), keyless=self.keyless))

    def do_recreated(self, *words: str, topic_id: str = "second") -> None:
        """The topic was deleted and created, with these events."""
        self.monkeypatch.setattr(MemoryTopic, "topic_id", topic_id)
        self.do_topic(*words)
        self.it.feed.at = {0: 0}

    def do_back(self, *words: str) -> None:
        """The stream reads its first topic again, with these events."""
        self.do_recreated(*words, topic_id="id")

    def do_trimmed(self, *firsts: str) -> None:
        """Each partition begins with this offset."""
        for p, first in enumerate(map(int, firsts)):
            whole = self.it.feed.records[p]
            self.it.feed.records[p] = whole.slice(first, len(whole))
        self._held()

    def _held(self) -> None:
        log = self.it.feed.runner.ports.topics
        assert isinstance(log, MemoryTopic)
        log.partitions = dict(self.it.feed.records)

    def do_sent_now(self) -> None:
        """By their clocks, the records may be newer than what a filling reads next."""
        self.it.feed.records[0].timestamps[:] = int(time.time() * 1000)

    def do_compacted(self, *offsets: str) -> None:
        """The topic no longer holds these, and begins with its first one."""
        whole = self.it.feed.records[0]
        kept = [at for at, offset in enumerate(whole.offsets) if str(offset) not in offsets]
        self.it.feed.records[0] = replace(
            whole,
            offsets=whole.offsets[kept],
            timestamps=whole.timestamps[kept],
            keys=[whole.keys[at] for at in kept],
            values=[whole.values[at] for at in kept],
            headers=[whole.headers[at] for at in kept],
        )
        self._held()

    def do_policy(self, name: str) -> None:
        self.it = with_policy(self.it, **POLICIES[name])

    def do_chunks(self, count: str) -> None:
        self.it.feed.runner.settings = replace(self.it.feed.runner.settings, chunk_offsets=int(count))

    def do_filled(self, end: str) -> None:
        """Another command has filled the table up to this offset."""
        book = self.it.feed.book
        book.claim("fact")
        book.record(TableRefilled(self.topic_id, 0, int(end), until=1_700_000_000_000 + CLOCKS))
        book.release()

    def do_fold(self) -> None:
        """The ledger no longer holds states of old results."""
        self.it.feed.book.claim("fold")
        self.monkeypatch.setattr("ch_sink.memory.ledger.fold_due", lambda *_: 3)
        self.it.feed.book.release()

    # The table, changed by somebody else

    def do_lose(self, *ids: str) -> None:
        lose(self.it, *map(int, ids))

    def do_plant(self, id_: str, like: str) -> None:
        plant(self.it, int(id_), like=int(like))

    def do_put_back(self, id_: str) -> None:
        put_back(self.it, int(id_))

    def do_hide(self, id_: str) -> None:
        """A mark of a later version hides a row; a collapsing table loses it."""
        newest = f"FROM t WHERE id = {id_} ORDER BY _version DESC LIMIT 1"
        mark = {"replacing": "1 AS _is_deleted", "sign": "-1 AS _sign"}.get(self.engine)
        if mark is None:
            lose(self.it, int(id_))
            return
        self.do_sql(f"INSERT INTO t SELECT * REPLACE(_version + 1 AS _version, {mark}) {newest}")

    def do_sql(self, *words: str) -> None:
        sql = re.sub(r"\bt\b", f"{self.it.database}.t", " ".join(words), count=2)
        self.it.client.command(sql, settings={"mutations_sync": 2, "insert_deduplicate": 0})

    # Commands

    def do_source(self, *words: str) -> None:
        """The source has these rows; ``<115``: they hold every change below that position."""
        below = [int(w[1:]) for w in words if w.startswith("<")]
        rows = rows_of([w for w in words if not w.startswith("<")])
        types = {"id": "bigint", "v": "varchar", "n": "bigint"}
        count = len(rows[0]) if rows else 2
        self.it.source = Rows(rows, 3 << 40 | below[0] if below else 0, types=dict([*types.items()][:count]))

    def do_meanwhile(self, *step: str) -> None:
        """While the source is read next, this happens."""
        source = self.it.source
        assert isinstance(source, Rows)

        def once() -> None:
            source.then = lambda: None
            self.step(" ".join(step))

        source.then = once

    def do_verify(self, *words: str) -> None:
        """``m e d [unknown [changing]]``: rows that are missing, extra, different, not judged; else none."""
        self._verified("topic", words)

    def do_verify_source(self, *words: str) -> None:
        self._verified("source", words)

    def do_verify_both(self, *words: str) -> None:
        self._verified("topic", words)
        self._verified("source", words)

    def _verified(self, against: Any, words: Sequence[str]) -> None:
        with verified(self.it.subject, Options(patience=0, against=against)) as done:
            r = done.report
        want = [*map(int, words or "000")]
        assert [r.missing, r.extra, r.different, r.unknown, r.changing][: max(3, len(want))] == want

    def do_unpaired(self, count: str) -> None:
        """Signs of a collapsing table that do not pair; those of key 1 are in the second part of two."""
        for bounds in (None, *([(1, None)] if self.it.key else [])):
            with verified(self.it.subject, Options(patience=0, bounds=bounds)) as done:
                assert (done.report.unpaired, done.report.equal) == (int(count), count == "0")

    def do_repair(self, against: str, count: str = "", *condition: str) -> None:
        """``N``: that many rows are written, ``N+M``: and M are too new to be."""
        options = Options(patience=0, against=against, condition=" ".join(condition))  # type: ignore[arg-type]
        done = repaired(self.it.subject, options, apply=True)
        rows, _, new = count.partition("+")
        assert (done.left, done.too_new, done.unremovable) == (0, int(new or 0), 0)
        assert not rows or done.rows == int(rows)

    def do_mend(self, *words: str) -> None:
        """A repair makes the table these rows of the source."""
        self.do_source(*words)
        self.do_repair("source")
        self.do_is(*words)

    def do_resync(self, against: str = "source") -> None:
        resynced(self.it.refill, apply=True, against=against)  # type: ignore[arg-type]

    def do_erase(self, id_: str, live: str = "") -> None:
        erased(self.it.subject, self.it.own, {"id": int(id_)}, apply=True, live=bool(live))
        self.do_none(id_)

    def do_purge(self, end: str) -> None:
        purged(self.it.subject, self.it.own, {0: int(end)}, apply=True, settle=0.0)

    def do_retry(self, partition: str, *words: str) -> None:
        """Of a partition: ``1 applied``, ``2 failed`` and so on are the letters' offsets."""
        done = retried(self.it, int(partition))
        ends = {"applied": done.applied, "superseded": done.superseded, "failed": done.failed, "waiting": done.waiting}
        found = {(str(offset), end) for end, offsets in ends.items() for offset in offsets}
        assert found == {*zip(words[::2], words[1::2], strict=True)}

    def do_drop_letters(self, *offsets: str) -> None:
        self.it.feed.letters_of.settle([(0, int(o)) for o in offsets], "dropped")

    # What is there

    def do_is(self, *words: str) -> None:
        assert self.it.view() == sorted(r[:2] for r in rows_of(words))

    def do_none(self, id_: str) -> None:
        """Not even a mark of it."""
        assert [r for r in self.it.stored() if r[0] == int(id_)] == []

    def do_keep(self) -> None:
        self.kept = self.it.stored()

    def do_kept(self) -> None:
        """Nothing was written since ``keep``."""
        assert self.it.stored() == self.kept

    def do_letters(self, *offsets: str) -> None:
        assert [x.letter.offset for x in self.it.feed.letters_of.list(10)] == [*map(int, offsets)]

    def do_explain(self, id_: str, *words: str) -> None:
        """``0 superseded, 1 dead letter``: offset and rule of each event, ``1:0`` in another partition."""
        events = life_of(self.it.subject, self.it.own, Biography(key(int(id_)))).events
        found = [f"{f'{e.partition}:' if e.partition else ''}{e.offset} {e.rule}" for e in events]
        assert found == [text.strip() for text in " ".join(words).split(",") if text]

    def do_why(self, id_: str, *words: str) -> None:
        """What `explain` says of the last event."""
        events = life_of(self.it.subject, self.it.own, Biography(key(int(id_)))).events
        assert " ".join(words) in events[-1].why
