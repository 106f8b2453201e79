"""One drawn case: a history, an engine, a decoder, cuts and faults; and what is wrong in the table afterwards."""

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from ch_sink.decode import Decoder
from ch_sink.model.policy import policy_of
from ch_sink.table.rollup import RollupChoice
from ch_sink.types.arrow import arrow_type
from tests.model import LAYOUTS, Batch, History, Knobs, draw_history, draw_plan
from tests.model.connectors import DEFERS
from tests.model.reference import change_log, difference, sign_faults
from tests.support.harness import ENGINES, VERSIONS, Run, target_table
from tests.support.rollups import memory_rollup_faults

KEYED = tuple(name for name, layout in LAYOUTS.items() if layout.table.key)
KEYLESS = tuple(name for name in LAYOUTS if name not in KEYED)
MYSQLS = ("mysql", "mariadb")
NARROW = ("UInt64", "Int64")
"""Version types that hold the Kafka offset."""


@dataclass(frozen=True, slots=True)
class Case:
    """``knobs`` names an entry of KNOBS; one case always is the same history and the same run."""

    seed: int
    engine: str
    knobs: str = "ordinary"
    decoder: str = "product"
    """``product`` or ``plain`` (a peer that shares no code with it)."""
    version: str = "UInt128"


KNOBS: Mapping[str, tuple[Knobs, tuple[str, ...]]] = {
    # Name → what is drawn, and the connectors that can do so (none: all).
    "ordinary": (Knobs(), ()),
    "short": (Knobs(operations=(4, 12)), ()),
    "adverse": (
        Knobs(redelivery=True, regress=True, overlapping=True, incremental=True, extras=True, high_offsets=True),
        (),
    ),
    "long": (Knobs(operations=(60, 120), redelivery=True), ()),
    "wide": (Knobs(operations=(12, 40), partitions=6, regress=False, swaps=False), ()),
    # Positions that drop in one partition first are beyond deciding for a truncate of all; so is, until another
    # partition's truncate is seen, whether a key that PostgreSQL moves a row to still has its former row.
    "truncates": (Knobs(truncate="alone", regress=False), MYSQLS),
    "truncates of rows that stay": (Knobs(truncate="alone", regress=False, key_changes=False), ("postgresql",)),
    "truncates move": (Knobs(truncate="alone", regress=False, truncates_move=True, redelivery=True), MYSQLS),
    "truncates and regress": (Knobs(truncate="alone", regress=True, partitions=1), (*MYSQLS, "postgresql")),
    # So are the rows of the truncate's own transaction in other partitions.
    "truncates inside": (Knobs(truncate="mixed", regress=False, partitions=1), ("postgresql",)),
    "gtid replay": (Knobs(gtid_replay=True, regress=True), MYSQLS),
    "compressed": (Knobs(compressed=True, redelivery=True), MYSQLS),
    "deferred swaps": (Knobs(deferred_swaps_without_images=True), ("postgresql",)),
    "oracle": (Knobs(), ("oracle",)),
    "oracle, adverse": (Knobs(redelivery=True, regress=True, overlapping=True, incremental=True), ("oracle",)),
    "db2": (Knobs(), ("db2",)),
    "db2, adverse": (Knobs(redelivery=True, regress=True, overlapping=True, incremental=True), ("db2",)),
    # Its snapshots are never incremental, and it has no positions that could step back.
    "singlestore": (Knobs(incremental=False, regress=False), ("singlestore",)),
    "singlestore, adverse": (
        Knobs(incremental=False, regress=False, redelivery=True, restarted_snapshot=True, extras=True),
        ("singlestore",),
    ),
    "swaps": (Knobs(swap_share=12, rotations=True), DEFERS),
    "swaps, adverse": (
        Knobs(swap_share=12, rotations=True, redelivery=True, regress=True, overlapping=True, incremental=True),
        DEFERS,
    ),
}
"""Every knob of the model is in one of them, each where the records say enough to decide the case."""

_SHARE = ("ordinary",) * 6 + ("adverse",) * 3 + ("long",) + tuple(KNOBS)[5:] * 2
_APPENDED = ("ordinary",) * 3 + ("adverse", "long")


def cases(first: int, count: int) -> Iterator[Case]:
    """Cases by seed: engines in turn, knobs and decoders by the seed."""
    engines = tuple(ENGINES)
    for seed in range(first, first + count):
        engine = engines[seed % len(engines)]
        share = _APPENDED if engine.startswith("append") else _SHARE
        yield Case(seed, engine, share[seed // len(engines) % len(share)], ("product", "plain")[seed // 7 % 3 == 0])


def cases_by_hand(first: int, count: int) -> Iterator[Case]:
    """The same for tables with each accepted type of version column. Half of those with a key have many swaps."""
    engines = len(ENGINES)
    for case in cases(first, count):
        turn = case.seed // engines
        swaps = ("", "swaps", "", "swaps, adverse", "", "deferred swaps")[turn % 6]
        knobs = swaps if swaps and case.engine != "append without key" else case.knobs
        yield replace(case, knobs=knobs, version=VERSIONS[turn // 6 % len(VERSIONS)])


@lru_cache(maxsize=400)
def drawn(case: Case) -> tuple[History, list[Batch]]:
    """The case's history and plan."""
    rng = random.Random(case.seed)
    knobs, connectors = KNOBS[case.knobs]
    layouts = KEYLESS if case.engine == "append without key" else KEYED
    connector = rng.choice(connectors) if connectors else None
    identity = None
    if case.knobs == "deferred swaps":
        identity = "default"
    elif case.knobs.startswith("swaps"):
        identity = "full"
    if case.version in NARROW and knobs.truncate != "none":
        knobs = replace(knobs, partitions=1)  # in more of them the truncate is refused
    history = draw_history(rng, connector=connector, identity=identity, layout=rng.choice(layouts), knobs=knobs)
    return history, draw_plan(rng, history, aligned=rng.random() < 0.3)


def faults_of(case: Case, rollups: Sequence[RollupChoice] = ()) -> list[str]:
    """Run the case in memory; returns what is wrong at its end, nothing if all is right."""
    history, plan = drawn(case)
    run = memory_run(case, history, rollups)
    run.run(plan)
    return faults_of_run(case, history, run)


def faults_of_run(case: Case, history: History, run: Run) -> list[str]:
    """What is wrong at the end of this run of the case."""
    faults = run.between
    rows = [_plain(row) for row in run.table.rows]
    if wrong := difference(history, [_plain(row) for row in run.table.current()]):
        faults.append(wrong)
    if run.letters.stored:
        faults.append(f"{len(run.letters.stored)} dead letters")
    if waiting := run.waiting:
        faults.append(f"{waiting} changes wait for ever")
    if case.engine in ("collapsing", "versioned"):
        faults += sign_faults(history.table, rows, "_sign", history.truth)
    if case.engine == "append":
        faults += log_faults(history, rows)
    return faults + memory_rollup_faults(run.table, history)


def memory_run(case: Case, history: History, rollups: Sequence[RollupChoice] = ()) -> Run:
    """A run into a table in memory."""
    engine, policy = ENGINES[case.engine], policy_of(truncate="apply", on_bad_record="fail")
    if case.decoder == "plain":
        return Run(history, engine, policy=policy, version=case.version, rollups=rollups)
    table = target_table(history.layout, engine, case.version)
    schema = pa.schema([(c.name, arrow_type(c.type)) for c in table.source_columns])
    return Run(
        history,
        engine,
        policy=policy,
        decoder=lambda want: Decoder(table, policy, want_before=want),
        schema=schema,
        version=case.version,
        rollups=rollups,
    )


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Text as ``str``: the product's decoder returns bytes."""
    return {n: v.decode() if isinstance(v, bytes) and n != "_version" else v for n, v in row.items()}


def log_faults(history: History, rows: list[dict[str, Any]]) -> list[str]:
    """What is wrong with the change history of a table with a key: each change is there once, with its values."""
    shape = history.table
    names = [c.name for c in shape.columns]
    have: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        gone = row["_op"] == "d"
        have[row["_op"], *(row[n] for n in (shape.key if gone else names))] += 1
    want: Counter[tuple[Any, ...]] = Counter()
    for entry in change_log(history):
        if entry.op == "d":
            want["d", *(entry.key or ())] += 1
        elif entry.after is not None:
            want[entry.op, *(entry.after[n] for n in names)] += 1
    for entry, n in want.items():
        if entry[0] == "r" and have[entry]:
            # A snapshot's chunk that was read again at the same place looks like one that was sent again.
            want[entry] = have[entry] if have[entry] <= n else n
    return [f"change missing {n}x: {c}" for c, n in (want - have).items()] + [
        f"change too many {n}x: {c}" for c, n in (have - want).items()
    ]
