"""Drawn histories of a source table, through the whole pipeline: the table equals its source, on every engine.

The model (tests/model) shares no code with the product. Quick tier: some hundreds of histories into a table in memory.
Into the real engine: test_histories_engine. The long run is `make test-long`.
"""

import itertools
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import import_module
from itertools import islice

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ch_sink.decode import Decoder
from ch_sink.model.policy import policy_of
from ch_sink.pipeline.target import Target
from tests.model import CONNECTORS, LAYOUTS, draw_history
from tests.model.connectors import BY_NAME, ConnectorName
from tests.model.plans import Batch, Chunk, Fault
from tests.property.regressions import REGRESSIONS, Regression
from tests.support.cases import KNOBS, Case, cases, cases_by_hand, drawn, faults_of, faults_of_run, memory_run
from tests.support.harness import ENGINES, VERSIONS, PlainDecoder, as_records, target_table
from tests.support.rollups import PLAIN

QUICK = 180
BY_HAND = 144
LONG = int(os.environ.get("CH_SINK_HISTORIES", "10000"))
LONG_BY_HAND = int(os.environ.get("CH_SINK_HISTORIES_BY_HAND", "20000"))
PIECES = 20


def faulty(chosen: Iterable[Case]) -> Iterator[str]:
    """The cases whose table differs, with what is wrong. Every other table that collapses has rollups."""
    for case in chosen:
        rolled = case.engine in ("collapsing", "versioned") and case.seed // len(ENGINES) % 2
        try:
            found = faults_of(case, PLAIN if rolled else ())
        except Exception as error:  # noqa: BLE001 (a crash is a finding like any other)
            found = [f"{type(error).__name__}: {error}"]
        if found:
            yield f"{case}: {found[0]}"


def every_fourth(chosen: Iterable[Case]) -> Iterator[Case]:
    """Of each turn of the engines one or two, and others in the next turn."""
    return (case for case in chosen if (case.seed + case.seed // len(ENGINES)) % 4 == 0)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", range(0, QUICK, QUICK // 3))
def test_tables_equal_their_source(first: int) -> None:
    assert list(faulty(every_fourth(cases(first, QUICK // 3)))) == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", range(0, BY_HAND, BY_HAND // 2))
def test_tables_made_by_hand_equal_their_source_whatever_their_version_type(first: int) -> None:
    assert list(faulty(every_fourth(cases_by_hand(first, BY_HAND // 2)))) == []


@given(st.integers(10**6, 2**63), st.sampled_from(sorted(ENGINES)), st.sampled_from(sorted(KNOBS)))
@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_tables_equal_their_source_for_any_seed(seed: int, engine: str, knobs: str) -> None:
    if engine.startswith("append") and knobs not in ("ordinary", "adverse", "long", "compressed"):
        knobs = "ordinary"
    assert faults_of(Case(seed, engine, knobs)) == []


@pytest.mark.sampled(6)
@pytest.mark.parametrize("case", REGRESSIONS, ids=str)
def test_what_was_wrong_once(case: Regression) -> None:
    assert faults_of(case.case) == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("inserts", [1, 2, 3])
@pytest.mark.parametrize("killed", [1, 2])
def test_a_chunk_is_stored_once_if_a_change_of_it_was_released_before_the_kill(killed: int, inserts: int) -> None:
    """The delete at offset 30 has its row's values whether or not the waiting change at offset 33 is in the chunk."""
    case = Case(2019976, "append")
    history, _ = drawn(case)
    plan = [
        Batch((Chunk(0, 0, 12), Chunk(0, 12, 22), Chunk(0, 22, 30)), ()),
        Batch((Chunk(0, 30, 34), Chunk(1, 0, 65), Chunk(0, 34, 36)), (Fault(killed, "after_insert", inserts),)),
    ]
    run = memory_run(case, history)
    run.run(plan)
    assert faults_of_run(case, history, run) == []


@pytest.mark.long
@pytest.mark.parametrize("piece", range(PIECES))
def test_ten_thousand_histories(piece: int) -> None:
    """Seeds of their own; ``CH_SINK_HISTORIES`` sets how many."""
    count = LONG // PIECES
    assert list(faulty(cases(10**5 + piece * count, count))) == []


@pytest.mark.long
@pytest.mark.parametrize("piece", range(PIECES))
def test_twenty_thousand_histories_of_tables_made_by_hand(piece: int) -> None:
    """``CH_SINK_HISTORIES_BY_HAND`` sets how many."""
    count = LONG_BY_HAND // PIECES
    assert list(faulty(cases_by_hand(2 * 10**6 + piece * count, count))) == []


def test_quick_cases_reach_every_engine_layout_connector_and_knob() -> None:
    met: Counter[str] = Counter()
    for case in every_fourth(cases(0, QUICK)):
        history, plan = drawn(case)
        met.update([case.engine, case.knobs, case.decoder, history.layout.name, history.connector, history.identity])
        met["killed"] += any(batch.faults for batch in plan)
    wanted = {*ENGINES, *KNOBS, *LAYOUTS, "product", "plain", *CONNECTORS, *BY_NAME, "killed"}
    wanted -= {"short", "wide"}  # of fault scripts only
    assert {name: met[name] for name in wanted if met[name] < 1} == {}


def test_quick_cases_by_hand_reach_every_version_type_and_swaps_in_it() -> None:
    met: Counter[tuple[str, str]] = Counter()
    for case in every_fourth(cases_by_hand(0, BY_HAND)):
        met[case.version, case.engine] += 1
        met[case.version, "swap"] += drawn(case)[0].features["swap"] > 0
    assert {pair for pair in itertools.product(VERSIONS, (*ENGINES, "swap")) if met[pair] < 1} == set()


@cache
def columns_of(seed: int, connector: ConnectorName | None = None) -> tuple[object, ...]:
    """What both decoders make of a history's partitions, as plain values."""
    history = draw_history(seed, connector=connector)
    table = target_table(history.layout, ENGINES["replacing"])
    product = Decoder(table, policy_of(), want_before=True)
    plain = PlainDecoder(history.layout, want_before=True)
    found = []
    for decoder in (product, plain):
        for partition, records in history.records.items():
            batch = decoder.decode(as_records(history.topic, partition, records))
            rows = [
                [_texts(r) for r in image.to_pylist()] for image in (batch.after, batch.before) if image is not None
            ]
            keys = [_texts(r) for r in batch.key.to_pylist()] if batch.key is not None else []
            numbers = [batch.op, batch.offset, batch.commit, batch.inner, batch.source_ts, batch.has_commit, batch.half]
            masks = {name: mask.tolist() for name, mask in batch.unavailable.items()}
            found.append(
                (rows, keys, [np.asarray(n).tolist() for n in numbers], masks, batch.skipped_counts, batch.bad)
            )
    half = len(found) // 2
    return found[:half], found[half:]


def _texts(row: dict[str, object]) -> dict[str, object]:
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in row.items()}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("first", range(0, 60, 20))
def test_the_decoder_agrees_with_its_peer(first: int) -> None:
    for seed in range(first, first + 20):
        product, plain = columns_of(seed)
        assert product == plain, seed


@pytest.mark.sampled(1)
@pytest.mark.parametrize("connector", BY_NAME)
def test_the_decoder_agrees_with_its_peer_on_connectors_drawn_by_name(connector: ConnectorName) -> None:
    for seed in range(12):
        product, plain = columns_of(seed, connector)
        assert product == plain, seed


@pytest.mark.long
def test_the_comparison_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the values that a moved row takes along, histories differ."""
    walk = import_module("ch_sink.merge.walk").Walk
    original = walk._handed

    def forgetful(self: object, key: object) -> tuple[bool, int]:
        known, ref = original(self, key)  # type: ignore[arg-type]
        return known, -1 if known else ref

    monkeypatch.setattr(walk, "_handed", forgetful)
    assert len(list(islice(faulty(cases(0, 120)), 1))) == 1


@pytest.mark.long
def test_without_positions_swaps_are_lost_where_versions_are_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Target, "follows", lambda self, source: False)
    assert len(list(islice(faulty(cases_by_hand(0, BY_HAND)), 1))) == 1
