"""Drawn fault scripts: what happens at which point of which batch of a drawn history, as data.

A script is one line of text: the case, how chunks are cut, and what happens in which batch.

    7005 collapsing adverse, chunks of 3 | 5: after results: kill | 6: before insert #2: no answer
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from ch_sink.clickhouse.replicas import Replicas
from ch_sink.decode import Decoder
from ch_sink.decode.key_layouts import KeyForm
from ch_sink.model.change import ChangeBatch, Records
from ch_sink.model.policy import Policy, TopicProfile, policy_of
from ch_sink.order import State
from ch_sink.ports import History as EarlierRecords
from ch_sink.ports import RowLookup, StoredRows
from ch_sink.table.model import Family, TargetTable
from ch_sink.table.rollup import RollupChoice
from ch_sink.types.arrow import arrow_type
from tests.support.cases import Case, drawn, faults_of_run
from tests.support.harness import ENGINES, Run, batches_of, target_table
from tests.support.kills import ALL_POINTS, Fault, What
from tests.support.local_runner import LocalBatch, LocalRunner
from tests.support.memory_table import MemoryTable

KINDS: Mapping[What, int] = {
    "kill": 6,
    "no answer": 4,
    "error": 2,
    "twice": 2,
    "second job": 4,
    "second execution": 2,
    "stale replica": 2,
    "clock": 1,
    "restored": 1,
    "setting": 1,
}
"""How often each kind is drawn."""
WRITES = ("insert", "handover", "pending", "dead letters", "progress", "release")
TASK = (*WRITES, "group", "lookup")
COMMON = ("intents", "insert", "insert", "results", "consume", "lookup", "progress", "step", "commit", "batch")
"""What every history reaches, or many do; the other points are drawn less often."""
CODES = (202, 241, 252, 999)
"""Too many queries, out of memory, too many parts, Keeper is away."""
SCRIPTED = ("replacing", "sign", "collapsing", "versioned", "append", "append without key")
POLICY = policy_of(truncate="apply", on_bad_record="fail")
KNOBS = ("short", "wide") + ("short",) * 4 + ("wide",) + ("short",) * 3 + ("ordinary", "adverse", "truncates", "long")
SWAPS = ("deferred swaps", "oracle", "db2, adverse")
"""Connectors that exchange two keys in one statement and report it row by row."""
APPENDED = ("short", "ordinary", "adverse", "long")
SIZES = {"short": (0, 0, 1, 2, 3, 5), "wide": (0, 8, 50, 50)}
LARGE = (0, 0, 5, 8, 13)
"""Offsets of a chunk as the product cuts it; 0: chunks cut anywhere, by the drawn plan. Most time goes into chunks, and
most is found in short histories."""


@dataclass(frozen=True, slots=True)
class Script:
    """``size``: offsets of a chunk; 0 if the drawn plan says where chunks end."""

    case: Case
    size: int
    faults: Mapping[int, Sequence[Fault]]
    """Batch → what happens in it, one fault an attempt."""

    def __str__(self) -> str:
        first = f"{self.case.seed} {self.case.engine} {self.case.knobs}, chunks of {self.size}"
        return " | ".join([first, *(f"{n}: {fault}" for n, found in self.faults.items() for fault in found)])

    @staticmethod
    def parse(text: str) -> "Script":
        """The script that is printed so. Raises ValueError."""
        first, *rest = text.strip().split(" | ")
        case, _, size = first.rpartition(", chunks of ")
        seed, _, chosen = case.partition(" ")
        engine = max((name for name in SCRIPTED if chosen.startswith(f"{name} ")), key=len, default="")
        knobs = chosen.removeprefix(engine).strip()
        faults: dict[int, list[Fault]] = {}
        for part in rest:
            number, _, fault = part.partition(": ")
            faults.setdefault(int(number), []).append(Fault.parse(fault))
        return Script(Case(int(seed), engine, knobs), int(size), faults)


def draw_script(rng: random.Random, case: Case) -> Script:
    """Some faults for the batches of the case."""
    _, plan = drawn(case)
    size = rng.choice(SIZES.get(case.knobs, LARGE))
    faults: dict[int, list[Fault]] = {}
    for number in range(len(plan)):
        if found := [_fault(rng, size) for _ in range(rng.choice((0, 1, 1, 2)))]:
            faults[number] = found
    return Script(case, size, faults)


def _point(rng: random.Random, *but: str) -> str:
    known = [point for point in ALL_POINTS if point not in but]
    often = [point for word in COMMON for point in known if point.endswith(word)]
    return rng.choice(often if rng.random() < 0.6 else known)


def _fault(rng: random.Random, size: int) -> Fault:
    what = rng.choices(list(KINDS), list(KINDS.values()))[0]
    nth = rng.choice((1, 1, 1, 2, 2, 3))
    match what:
        case "no answer" | "error":
            value = rng.choice(CODES) if what == "error" else 0
            return _once(Fault(_point(rng, "before batch", "after step"), nth), what, value)
        case "twice":
            return Fault(f"before {rng.choice(('insert', *WRITES))}", nth, what=what)
        case "second execution":
            return Fault(f"{rng.choice(('before', 'after'))} {rng.choice(TASK)}", nth, what=what)
        case "second job":
            dies = _point(rng, "before batch") if rng.random() < 0.3 else ""
            return _once(Fault(_point(rng, "before batch"), nth, dies=dies), what, rng.randrange(2))
        case "stale replica":
            return Fault(
                rng.choice(("before batch", "after step", "after insert")), nth, what=what, value=rng.randint(1, 9)
            )
        case "clock":
            where = rng.choice(("before batch", "after insert", "before results", "after pending"))
            return _once(Fault(where, nth), what, rng.choice((-86_400, -3600, -5, 5, 3600, 86_400)))
        case "restored":
            return Fault("before batch", what=what, value=rng.randint(1, 3))
        case "setting":
            return Fault("before batch", what=what, value=rng.randrange(1, 9) * (1 if size else -1))
        case _:
            return _once(Fault(_point(rng), nth), what, 0)


def _once(fault: Fault, what: What, value: int) -> Fault:
    """At points that an attempt passes once, the first time counts."""
    once = any(word in fault.point for word in ("claim", "intents", "results", "batch", "commit"))
    return replace(fault, nth=1 if once else fault.nth, what=what, value=value)


def _schema(table: TargetTable) -> pa.Schema:
    return pa.schema([(c.name, arrow_type(c.type)) for c in table.source_columns])


class Remembering:
    """A decoder that decodes the same records once: scripts of one case share it."""

    def __init__(self, inner: Decoder) -> None:
        self.inner = inner
        self._decoded: dict[Any, ChangeBatch] = {}
        self._learned: dict[Any, TopicProfile] = {}

    def learn(
        self, records: Records, profile: TopicProfile | None = None, history: EarlierRecords | None = None
    ) -> TopicProfile:
        key = records.partition, records.offsets.tobytes(), profile, history is None
        if key not in self._learned:
            self._learned[key] = self.inner.learn(records, profile, history)
        return self._learned[key]

    def decode(self, records: Records, profile: TopicProfile | None = None, *, waited: bool = False) -> ChangeBatch:
        key = records.partition, records.offsets.tobytes(), profile, waited
        if key not in self._decoded:
            self._decoded[key] = self.inner.decode(records, profile, waited=waited)
        return self._decoded[key]

    def key_values(self, keys: list[bytes], profile: TopicProfile) -> list[tuple[Any, ...] | None]:
        return self.inner.key_values(keys, profile)

    def key_forms(self, keys: Sequence[bytes | None]) -> list[KeyForm]:
        return self.inner.key_forms(keys)


@lru_cache(maxsize=32)
def _decoder(case: Case, policy: Policy, want: bool) -> Remembering:
    history, _ = drawn(case)
    return Remembering(Decoder(target_table(history.layout, ENGINES[case.engine]), policy, want_before=want))


@dataclass
class Lagging:
    """A lookup behind a balancer: some requests are answered by a replica that lacks the newest rows."""

    table: MemoryTable
    has: int = 0
    """Rows of the replica that lags."""
    routes: list[str] = field(default_factory=list)
    """Who answers the next requests; then the one that has everything."""
    server: str = "a"

    def lag(self, rows: int, rng: random.Random) -> None:
        self.has = max(0, len(self.table.rows) - rows)
        self.routes = [rng.choice("ab") for _ in range(12)]

    def fetch(self, keys: pa.Table, below: pa.Array | None = None) -> StoredRows:
        if not self.routes:
            return self.table.fetch(keys, below)
        servers = Replicas(lambda: self.server, lambda _: self._sync(), lambda _: True)
        return servers.current("t", lambda: self._read(keys, below))

    def _route(self) -> None:
        self.server = self.routes.pop(0) if self.routes else "a"

    def _sync(self) -> None:
        self._route()
        if self.server == "b":
            self.has = len(self.table.rows)

    def _read(self, keys: pa.Table, below: pa.Array | None) -> StoredRows:
        self._route()
        if self.server == "a":
            return self.table.fetch(keys, below)
        old = MemoryTable(self.table.table, self.table.keys)
        old._schema = self.table._schema
        old.rows = self.table.rows[: self.has]
        for place, row in enumerate(old.rows):
            old._by_key.setdefault(old._key(row, old.keys), []).append(place)
        return old.fetch(keys, below)


class Surroundings:
    """What is outside the job: the server's state at earlier times, its replicas, the clock, the configuration."""

    def __init__(self, run: Run, ledger_alone: bool = False) -> None:
        """``ledger_alone``: a restored server has what the sink's own tables had, and the table as it is."""
        self.run, self.offset, self.ledger_alone = run, 0, ledger_alone
        self.lagging = Lagging(run.table)
        self._states: list[Any] = []

    def time(self) -> float:
        """The host's clock."""
        return time.time() + self.offset

    def keep(self) -> None:
        """Remember how ClickHouse is now."""
        stream = self.run.stream
        book = stream.ledger._book
        # Rows are never changed.
        kept = list(stream.table.rows), {k: list(v) for k, v in stream.table._by_key.items()}
        ours = deepcopy((book.claims, book.batches, book.facts, book.releases, book.topics, book.executions))
        rest = deepcopy((stream.pending.stored, stream.pending.resolved)), dict(stream.handover.stored)
        letters = dict(stream.dead_letters.stored), deepcopy(stream.table.rollups)
        self._states.append((kept, ours, list(book.ranges), rest, letters))

    def restore(self, back: int) -> None:
        """ClickHouse is as it was so many batches ago."""
        if not self._states:
            return
        stream = self.run.stream
        book = stream.ledger._book
        kept, ours, ranges, rest, letters = self._states[-min(back, len(self._states))]
        del self._states[len(self._states) - min(back, len(self._states)) + 1 :]
        stream.table.tokens.clear()  # a backup has none
        if not self.ledger_alone:
            stream.table.rows[:] = kept[0]
            stream.table._by_key = {k: list(v) for k, v in kept[1].items()}
            stream.table.rollups = deepcopy(letters[1])
        names = ("claims", "batches", "facts", "releases", "topics", "executions")
        for name, value in zip(names, deepcopy(ours), strict=True):
            setattr(book, name, value)
        book.ranges[:] = ranges
        stream.pending.stored, stream.pending.resolved = deepcopy(rest[0])
        stream.handover.stored = dict(rest[1])
        stream.dead_letters.stored = dict(letters[0])

    def happen(self, fault: Fault) -> None:
        """See LocalRunner: ``on_fault``."""
        runner = self.run.runner
        match fault.what:
            case "stale replica":
                self.lagging.lag(fault.value, random.Random(fault.value))
            case "clock":
                self.offset += fault.value
            case "restored":
                self.restore(fault.value)
            case "setting":
                offsets = runner.settings.chunk_offsets if fault.value < 0 else fault.value
                runner.settings = replace(runner.settings, chunk_offsets=offsets)
                if self._key_is_known():  # else this may not be changed
                    # It never says anything else of these histories, and is another policy all the same.
                    values = replace(runner.settings.policy.values, out_of_range=("fail", "clamp")[fault.value % 2])
                    runner.settings = replace(runner.settings, policy=replace(runner.settings.policy, values=values))

    def _key_is_known(self) -> bool:
        """Whether the stream knows a key. A table that only grows may have none until the first result shows it."""
        run = self.run
        if run.table.table.engine.family is not Family.MERGE_TREE:
            return bool(run.table.keys)
        return any(State.from_json(total.state).profile.key_columns for total in run.stream.ledger.totals())


def run_script(
    script: Script, rollups: Sequence[RollupChoice] = (), kept: int = 500, *, ledger_alone: bool = False
) -> Run:
    """Run it.

    Args:
        kept: results of a partition that the ledger does not fold.
        ledger_alone: see `Surroundings`.

    Raises ChSinkError where the stream stops for another reason than a fault.
    """
    history, plan = drawn(script.case)
    made = Run(
        history,
        ENGINES[script.case.engine],
        policy=POLICY,
        decoder=lambda want: _decoder(script.case, POLICY, want),
        schema=_schema(target_table(history.layout, ENGINES[script.case.engine])),
        rollups=rollups,
    )
    made.stream.ledger.keep(kept)
    around = Surroundings(made, ledger_alone)
    settings = replace(made.stream.settings, chunk_offsets=script.size or 50_000)
    lookup: RowLookup = around.lagging
    ports = replace(made.stream.ports(), lookup=lambda _: lookup, clock=around.time)
    made.runner = LocalRunner(settings, ports, after_batch=made._look, on_fault=around.happen)
    keeps = any(f.what == "restored" for found in script.faults.values() for f in found)
    for number, batch in enumerate(batches_of(plan, collapsing=made.collapsing)):
        if keeps:
            around.keep()
        cuts = {} if script.size else batch.cuts
        faults = script.faults.get(number, ())
        made.runner.run([LocalBatch(batch.ranges, cuts, batch.order, faults, groups=1 + script.case.seed % 2)])
    made.runner.stop()
    return made


def faults_of_script(
    script: Script, happened: Counter[str] | None = None, rollups: Sequence[RollupChoice] = ()
) -> list[str]:
    """What is wrong at its end; nothing if all is right. ``happened``: counts the faults that struck."""
    try:
        run = run_script(script, rollups)
    except Exception as error:  # noqa: BLE001 (it is what was found)
        return [f"{type(error).__name__}: {error}"]
    if happened is not None:
        happened.update(run.runner.happened)
    history, _ = drawn(script.case)
    return faults_of_run(script.case, history, run) + stored_twice(run)


def stored_twice(run: Run) -> list[str]:
    """Changes that a replacing table holds twice, which no reader would notice."""
    table = run.table.table
    if table.engine.family is not Family.REPLACING:
        return []
    names = [*run.table.keys, *table.sorting_key, *table.system_columns]
    found = Counter(tuple(str(row[name]) for name in names) for row in run.table.rows)
    return [f"stored {n}x: {dict(zip(names, row, strict=True))}" for row, n in found.items() if n > 1]


def shrunk(script: Script, wrong: Callable[[Script], object] = faults_of_script) -> Script:
    """The shortest script that is still wrong: faults are left out, and happen as early and plainly as can be."""
    made = script
    todo = True
    while todo:
        todo = False
        for shorter in _shorter(made):
            if wrong(shorter):
                made, todo = shorter, True
                break
    return made


def _shorter(script: Script) -> Iterator[Script]:
    for number, found in script.faults.items():
        rest = {n: f for n, f in script.faults.items() if n != number}
        if len(script.faults) > 1 or len(found) > 1:
            yield replace(script, faults=rest)
        for at, fault in enumerate(found):
            if len(found) > 1:
                yield replace(script, faults=dict(sorted({**rest, number: [*found[:at], *found[at + 1 :]]}.items())))
            plainer = (replace(fault, dies=""), replace(fault, nth=1), Fault(fault.point, fault.nth, fault.step))
            for other in plainer:
                if other != fault and (other.what == fault.what or fault.what != "restored"):
                    with_it = [*found[:at], other, *found[at + 1 :]]
                    yield replace(script, faults=dict(sorted({**rest, number: with_it}.items())))


def scripts(first: int, histories: int, each: int, knobs: Sequence[str] = KNOBS) -> Iterator[Script]:
    """Drawn scripts: so many of each engine for each history."""
    for seed in range(first, first + histories):
        for engine in SCRIPTED:
            chosen = knobs[seed % len(knobs)]
            case = Case(seed, engine, "ordinary" if engine.startswith("append") and chosen not in APPENDED else chosen)
            rng = random.Random(f"{seed} {engine}")
            for _ in range(each):
                yield draw_script(rng, case)
