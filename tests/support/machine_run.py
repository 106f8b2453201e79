"""Draws sequences of steps, runs them, and shortens those that fail."""

import itertools
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from ch_sink.clickhouse import Client
from ch_sink.errors import ChSinkError
from ch_sink.trust.biography import Biography, Event
from ch_sink.trust.one_key import life_of
from ch_sink.trust.resync import resynced
from tests.support.kills import Killed
from tests.support.machine import ENGINES, Refused, Stand, Wrong, backup, differing, restore
from tests.support.machine_model import Shop, applied
from tests.support.machine_steps import (
    again,
    all_of_it,
    defect,
    dies,
    erase,
    fail_over,
    flow,
    forget,
    killed,
    mend,
    partition,
    purge,
    read,
    recreate,
    repair,
    repair_source,
    resync_source,
    resync_topic,
    retention,
    retry,
    snapshot,
    truncate,
    verify,
    verify_source,
    write,
)


def explain(s: Stand, rng: Random) -> None:
    """The events of some keys are all of them, and the newest one is the row."""
    for id_ in rng.sample(sorted(s.shop.ever), min(3, len(s.shop.ever))):
        events = life_of(s.subject, s.own, Biography({"id": id_})).events
        log = s.shop.log
        told = {(p, at) for p in log for at in range(s.shop.low[p], len(log[p])) if _is_event(s, p, at, id_)}
        # A key of which no record can be read is known by its letters.
        if {(e.partition, e.offset) for e in events} != told:
            raise Wrong(f"explain shows {events} of key {id_}, and the topic has {sorted(told)}")
        if s.all_read and id_ not in s.in_doubt():
            _expect_true(s, id_, events)


def _is_event(s: Stand, p: int, at: int, id_: int) -> bool:
    record = s.shop.log[p][at]
    return record.id == id_ and (record.effective or record.bad)


def _expect_true(s: Stand, id_: int, events: list[Event]) -> None:
    view, rules = s.view(), [e.rule for e in events]
    if {"not read yet", "waiting"} & {*rules}:
        raise Wrong(f"explain calls changes of key {id_} unread: {events}")
    newest = [e for e in events if e.rule == "newer"]
    if len(newest) > 1:
        raise Wrong(f"explain calls several changes of key {id_} newer: {newest}")
    for e in newest:
        record = s.shop.log[e.partition][e.offset]
        lost = "the table has no row" in e.why
        is_it = id_ not in view if record.gone or lost else (id_ in view and view[id_] == record.value)
        if not is_it or (lost and not s.by_hand):
            raise Wrong(f"explain says of key {id_} that offset {e.offset} of {e.partition} is it: {events}, {view}")
    if "repaired" in rules and not s.by_hand:
        raise Wrong(f"explain calls key {id_} repaired: {events}")
    from_topic = not (any(s.shop.low.values()) or s.loaded or s.by_hand)
    if from_topic and id_ in view and not newest:
        raise Wrong(f"explain does not know whence the row of key {id_} is: {events}, {view}")


def into(s: Stand, rng: Random) -> None:
    """The whole topic in another table is what the topic shows."""
    if any(s.shop.low.values()):
        raise Refused("the topic has lost its front")
    clause, own = ENGINES[s.engine]
    number = "UInt8" if s.narrow else "Int64"
    s.client.command(f"DROP TABLE IF EXISTS {s.database}.r SYNC")
    s.client.command(
        f"CREATE TABLE {s.database}.r (id Int64, v Nullable(String), n Nullable({number}), {own}) ENGINE = {clause} "
        "ORDER BY id"
    )
    resynced(s.refill, apply=True, against="topic", into="r")
    mark = {"replacing": "_is_deleted = 0", "timed": "_is_deleted = 0"}.get(s.engine, "_sign > 0")
    found = s.client.rows(f"SELECT id, v FROM {s.database}.r FINAL WHERE {mark}")
    rows = {int(r["id"]): r["v"] for r in found}
    want = _all_rows(s)
    # Whether the former values of a row make a letter of its change depends on the engine.
    unsure = {r.id for log in s.shop.log.values() for r in log if r.wide} if s.narrow else set()
    if wrong := differing(want, rows, s.moved() | unsure):
        raise Wrong(f"another table got {wrong} (right, found)")


def _all_rows(s: Stand) -> dict[int, str | None]:
    return applied({}, (r for r in s.shop.between({}, s.shop.ends) if not (s.narrow and r.wide)))


Step = tuple[str, int]

STEPS: dict[str, tuple[int, Callable[[Stand, Random], None]]] = {
    "write": (8, write),
    "read": (7, read),
    "all": (4, all_of_it),
    "flow": (6, flow),
    "killed": (4, killed),
    "dies": (2, dies),
    "again": (2, again),
    "verify": (2, verify),
    "verify source": (2, verify_source),
    "repair": (1, repair),
    "repair source": (1, repair_source),
    "resync source": (3, resync_source),
    "resync topic": (2, resync_topic),
    "defect": (4, defect),
    "purge": (3, purge),
    "erase": (2, erase),
    "mend": (2, mend),
    "retry": (2, retry),
    "forget": (1, forget),
    "retention": (2, retention),
    "recreate": (2, recreate),
    "partition": (2, partition),
    "fail over": (2, fail_over),
    "snapshot": (1, snapshot),
    "truncate": (3, truncate),
    "explain": (4, explain),
    "into": (2, into),
    "backup": (2, backup),
    "restore": (3, restore),
}


_numbers = itertools.count(1)


@dataclass(frozen=True)
class Plan:
    """A sequence, and what it begins with."""

    engine: str
    partitions: int
    strategy: str
    kept: int
    chunk: int
    wide: float
    lost: str
    pg: bool
    steps: tuple[Step, ...]
    end: tuple[Step, ...] = ()


@dataclass
class Outcome:
    failure: str = ""
    steps: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def kind(self) -> str:
        """What failed, without its numbers."""
        return re.sub(r"[0-9]+|'.*?'", "", self.failure.partition(" ")[2].partition(" ")[2])[:45]


def drawn(seed: int, shortest: int = 3, longest: int = 8) -> Plan:
    rng = Random(seed)
    wide = rng.choice([0.0, 0.0, 0.2])
    chosen = {name: weight for name, (weight, _) in STEPS.items() if wide or name not in ("mend", "retry", "forget")}
    names, weights = [*chosen], [*chosen.values()]
    count = rng.randint(shortest, longest)
    steps = [("write", rng.randrange(10**6)), ("read", rng.randrange(10**6))]
    steps += [(name, rng.randrange(10**6)) for name in rng.choices(names, weights, k=count)]
    engine = rng.choice(["replacing", "replacing", "sign", "collapsing", "collapsing", "versioned", "timed", "bare"])
    strategy = rng.choice(["auto", "auto", "kafka_offset"])
    return Plan(
        engine,
        rng.choice([1, 1, 2, 3]),
        "source_time" if engine == "timed" else strategy,
        rng.choice([500, 500, 2]),
        rng.choice([50_000, 2]),
        wide,
        rng.choice(["fail", "continue"]),
        not wide and rng.random() < 0.5,
        tuple(steps),
        rng.choice([(), (("verify", 0),), (("verify source", 0),)]),
    )


def run(client: Client, plan: Plan) -> Outcome:
    """Run a sequence; it ends with everything read and compared."""
    out = Outcome()
    shop = Shop(plan.partitions, int(time.time() * 1000) - 3_600_000, wide=plan.wide, pg=plan.pg)
    policy = {"version_strategy": plan.strategy, "truncate": "apply"}
    name = f"machine_{next(_numbers)}"
    stand = Stand(client, name, plan.engine, shop, policy, plan.kept, plan.chunk, plan.lost)  # type: ignore[arg-type]
    at, name = -1, ""
    try:
        for name, seed in [*plan.steps, ("all", 0), *plan.end]:
            at += 1
            out.steps[name] += 1
            try:
                STEPS[name][1](stand, Random(seed))
            except Refused as no:
                out.refused[f"{name}: (machine) {no}"] += 1
            except ChSinkError as error:
                out.refused[f"{name}: {type(error).__name__}: {error}"] += 1
            stand.check()
    except (Wrong, Killed, Exception) as error:  # noqa: BLE001 – whatever it is, the sequence is to be shown
        out.failure = f"step {at} {name}: {type(error).__name__}: {error}"
    finally:
        stand.drop()
    return out


def shortened(client: Client, plan: Plan) -> tuple[Plan, Outcome]:
    """Without the steps that the failure does not need."""
    last, steps = run(client, plan), list(plan.steps)
    kind = last.kind
    smaller = True
    while smaller:
        smaller = False
        for i in reversed(range(len(steps))):
            fewer = steps[:i] + steps[i + 1 :]
            done = run(client, replace(plan, steps=tuple(fewer)))
            if done.kind == kind:
                steps, last, smaller = fewer, done, True
    return replace(plan, steps=tuple(steps)), last
