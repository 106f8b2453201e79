"""Drawn histories, flattened on their way, through the whole pipeline: the table equals its source all the same.

What flattened events cannot tell is left out: truncates (the transformation drops them), updates of tables without a
key, keys exchanged by one statement, and (without positions) values that a key change leaves out.
"""

import json
import random
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ch_sink.decode import Decoder
from ch_sink.model.change import ChangeBatch, Records
from ch_sink.model.policy import Policy, policy_of
from ch_sink.types.arrow import arrow_type
from ch_sink.types.column import Column
from tests.model import LAYOUTS, Batch, History, Knobs, draw_history, draw_plan
from tests.model.reference import difference, sign_faults
from tests.support.choose import each_value
from tests.support.decoding import replacing
from tests.support.fixtures import Recorded
from tests.support.hand import Event, records_of
from tests.support.harness import ENGINES, Run, target_table
from tests.support.memory_fed import MemoryFed
from tests.support.smt import Flatten

KEYED = tuple(layout for layout in LAYOUTS.values() if layout.table.key)
POSITIONS = {
    "mysql": ("file", "pos", "row", "ts_ms"),
    "mariadb": ("file", "pos", "row", "ts_ms"),
    "postgresql": ("lsn", "sequence", "ts_ms"),
    "sqlserver": ("commit_lsn", "change_lsn", "event_serial_no", "ts_ms"),
}
KNOBS = Knobs(swaps=False)
MODES = ("tombstone", "tombstone headers", "rewrite", "rewrite fields", "rewrite-with-tombstone", "none kept")


def transformation(mode: str, connector: str) -> Flatten:
    told = ("op", *(f"source.{name}" for name in POSITIONS.get(connector, ("ts_ms",))))
    if mode == "none kept":
        return Flatten("", drop_tombstones=False, delete_handling="none")
    name: Any = mode.split(" ")[0]
    return Flatten(
        name,
        add_fields=told if mode.endswith("fields") else (),
        add_headers=told if mode.endswith("headers") else (),
    )


def flattened(history: History, smt: Flatten) -> History:
    """The history as the transformation leaves it; offsets stay, so that dropped records leave gaps."""
    records = {}
    for partition, mine in history.records.items():
        out = []
        for record in mine:
            given = Recorded(
                history.topic, partition, record.offset, 0, record.key, record.value, tuple(record.headers)
            )
            left = smt.one(given)
            if left is not None:
                out.append(replace(record, value=left.value, headers=type(record.headers)(left.headers)))
        records[partition] = out
    return replace(history, records=records)


@pytest.mark.parametrize("where", ["nulls", "everywhere", "nowhere"])
@pytest.mark.parametrize("apart", [False, True])
def test_halves_of_a_key_change_meet_whichever_of_them_states_a_time(where: str, apart: bool) -> None:
    def stated(op: str, commit: int, lsn: int) -> dict[str, Any]:
        timed = where == "everywhere" or (op == "d" and where == "nulls")
        time = {"__ts_ms": 1_700_000_000_000 + lsn} if timed else {}
        return {"__op": op, "__lsn": lsn, "__sequence": json.dumps([str(commit), str(lsn)]), **time}

    def sent(id_: int, big: str | None, fields: dict[str, Any], *more: tuple[str, bytes]) -> Event:
        headers = [*more, *((name, str(value).encode()) for name, value in fields.items())]
        return Event({"id": id_}, None if big is None else {"id": id_, "big": big, **fields}, headers)

    events = [
        sent(1, "B", stated("c", 900, 1010)),
        sent(1, None, stated("d", 1021, 1030), ("__debezium.newkey", b'{"id": 5}')),
        sent(5, "__debezium_unavailable_value", stated("c", 1021, 1030), ("__debezium.oldkey", b'{"id": 1}')),
    ]
    made = MemoryFed(partitions=1)
    for end in (1, 2, 3) if apart else (3,):
        made.topic.partitions[0], made.topic.ends[0] = records_of(events[:end], sent=1_700_000_999_000), end
        made.poll()
    assert made.view() == {5: "B"}, made.letters


def run_of(history: History, engine: str, policy: Policy, plan: list[Batch]) -> Run:
    table = target_table(history.layout, ENGINES[engine])
    schema = pa.schema([(c.name, arrow_type(c.type)) for c in table.source_columns])
    run = Run(
        history,
        ENGINES[engine],
        policy=policy,
        decoder=lambda want: Decoder(table, policy, want_before=want),
        schema=schema,
    )
    run.run(plan)
    return run


def texts(row: dict[str, Any]) -> dict[str, Any]:
    return {n: v.decode() if isinstance(v, bytes) and n != "_version" else v for n, v in row.items()}


def faults(seed: int, mode: str, engine: str, **choices: Any) -> list[str]:
    rng = random.Random(seed)
    connector: Any = rng.choice(sorted(POSITIONS))
    # Values left out need positions, once their row changed its key.
    positioned = mode in ("tombstone headers", "rewrite fields")
    identity: Any = None if positioned or connector != "postgresql" else "full"
    knobs = replace(KNOBS, key_changes=connector != "postgresql" or positioned)
    history = draw_history(rng, connector=connector, identity=identity, layout=rng.choice(KEYED), knobs=knobs)
    history = flattened(history, transformation(mode, connector))
    policy = policy_of(on_bad_record="fail", **choices)
    run = run_of(history, engine, policy, draw_plan(rng, history, aligned=rng.random() < 0.3))
    found = list(run.between)
    if wrong := difference(history, [texts(row) for row in run.table.current()]):
        found.append(f"{history!r}: {wrong}")
    if engine in ("collapsing", "versioned"):
        rows = [texts(row) for row in run.table.rows]
        found += sign_faults(history.table, rows, "_sign", history.truth)
    if run.letters.stored:
        found.append("dead letters")
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("mode", "engine"), each_value(MODES, ["replacing", "sign", "collapsing", "versioned"]))
def test_flattened_histories_give_the_source_s_table(mode: str, engine: str) -> None:
    wrong = []
    for seed in range(3):
        try:
            found = faults(seed, mode, engine)
        except Exception as error:  # noqa: BLE001 (a crash is a finding like any other)
            found = [f"{type(error).__name__}: {error}"]
        wrong += [f"{seed}: {f}" for f in found[:1]]
    assert wrong == []


@pytest.mark.long
def test_positions_order_flattened_events_where_that_is_asked_for() -> None:
    for seed in range(4):
        for mode in ("tombstone headers", "rewrite fields"):
            assert faults(seed, mode, "replacing", version_strategy="source_position") == []


@pytest.mark.long
def test_the_histories_have_deletes_that_only_null_values_tell() -> None:
    wrong = [seed for seed in range(12) if faults(seed, "tombstone", "replacing", tombstones="ignore")]
    assert len(wrong) > 6


@st.composite
def rows_of_any_kind(draw: st.DrawFn) -> bytes:
    """Flattened rows, some of them wrong: fields that lack, are unknown or of another kind, cut texts."""
    row: dict[str, Any] = {"id": draw(st.integers(-3, 3)), "v": draw(st.none() | st.text(max_size=3))}
    row |= draw(st.fixed_dictionaries({}, optional={"__op": st.sampled_from("crudx"), "__lsn": st.integers(0, 9)}))
    row |= draw(st.fixed_dictionaries({}, optional={"__deleted": st.sampled_from(["true", "false"])}))
    if draw(st.integers(0, 4)) == 0:
        row[draw(st.sampled_from(["id", "v", "more", "__op"]))] = draw(st.sampled_from([None, 1.5, "x", [1], 2**70]))
    if draw(st.integers(0, 6)) == 0:
        del row["v"]
    text = json.dumps(row, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")
    return text[: draw(st.integers(1, len(text)))] if draw(st.integers(0, 9)) == 0 else text


@given(st.lists(rows_of_any_kind(), min_size=1, max_size=7))
@settings(max_examples=30, deadline=None)
def test_a_row_means_the_same_alone_and_among_others(values: list[bytes]) -> None:
    table = replacing((Column("id", "Int64"), Column("v", "Nullable(String)")), ("id",))
    n = len(values)
    keys: list[bytes | None] = [b'{"id":1}'] * n
    whole = Records("t", 0, np.arange(n), np.zeros(n, dtype=np.int64), keys, list(values), None)
    policy = policy_of(events="flattened")
    together = Decoder(table, policy, want_before=True).decode(whole)
    bad = {record.index: record.column for record in together.bad}
    for i in range(n):
        alone = Decoder(table, policy, want_before=True).decode(whole.slice(i, i + 1))
        assert {r.column for r in alone.bad} == ({bad[i]} if i in bad else set())
        assert told(alone, 0) == told(together, i)


def told(batch: ChangeBatch, place: int) -> Any:
    """What a batch says of the record at this place; None where it says nothing."""
    at = batch.source_index.tolist()
    if place not in at:
        return None
    i = at.index(place)
    assert batch.before is not None
    images = batch.after.to_pylist()[i], batch.before.to_pylist()[i], bool(batch.has_before[i])
    return int(batch.op[i]), images, sorted(name for name, mask in batch.absent.items() if mask[i])
