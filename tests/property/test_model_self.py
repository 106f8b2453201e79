"""The model against a consumer that shares nothing with its maker, and its coverage."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.model import CONNECTORS, LAYOUTS, History, Knobs, draw_history, draw_plan
from tests.model.connectors import BY_NAME, ConnectorName
from tests.model.peer import Peer
from tests.model.reference import change_log, current_rows, difference, folded_log, replay, sign_faults
from tests.model.strategies import histories, runs

# The truth: an independent consumer reaches it from the bytes.


ORDINARY = Knobs()
ADVERSE = Knobs(
    truncate="mixed",
    truncates_move=True,
    restarted_snapshot=True,
    gtid_replay=True,
    high_offsets=True,
    deferred_swaps_without_images=True,
)


@cache
def sample(knobs: Knobs = ORDINARY) -> tuple[History, ...]:
    return tuple(draw_history(seed, knobs=knobs) for seed in range(200))


@pytest.mark.long
@pytest.mark.parametrize("knobs", [ORDINARY, ADVERSE], ids=["ordinary", "adverse"])
def test_a_consumer_in_sending_order_reaches_the_truth(knobs: Knobs) -> None:
    for seed, history in enumerate(sample(knobs)):
        assert replay(history) == current_rows(history), f"seed {seed}\n{history.listing()}"


UNTRUNCATED = replace(ADVERSE, truncate="none")
COMPRESSED = Knobs(compressed=True, redelivery=True)


@pytest.mark.long
@pytest.mark.parametrize(
    "knobs",
    [
        pytest.param(ORDINARY, id="ordinary"),
        pytest.param(UNTRUNCATED, id="adverse"),
        pytest.param(COMPRESSED, id="compressed", marks=pytest.mark.long),
    ],
)
def test_a_consumer_of_any_cut_and_interleaving_reaches_the_truth(knobs: Knobs) -> None:
    """So the records are enough to decide every case, in each partition's order alone."""
    counts: Counter[str] = Counter()
    for seed, history in enumerate(sample(knobs)[:100]):
        if knobs.compressed and not history.key:
            continue
        peer = Peer(history)
        peer.run(draw_plan(seed, history, faults=False))
        assert peer.table() == current_rows(history), f"seed {seed}\n{history.listing()}"
        assert not peer.waiting
        counts += peer.counts
    assert counts["unresolved"] == 0
    for name in ("re-delivered", "re-delivered at the highest", "regress", "waited", "two owners"):
        assert counts[name] >= 2, name


@pytest.mark.long
@pytest.mark.parametrize("connector", BY_NAME)
def test_connectors_drawn_by_name_tell_the_truth(connector: ConnectorName) -> None:
    """To a consumer in the order of sending; and, where positions order, to one of any cut and interleaving."""
    ordered = connector != "singlestore"
    knobs = Knobs(redelivery=True) if ordered else Knobs(redelivery=True, incremental=False, regress=False)
    keyed = [name for name, layout in LAYOUTS.items() if layout.table.key]
    for seed in range(40):
        history = draw_history(seed, connector=connector, layout=keyed[seed % len(keyed)], knobs=knobs)
        assert replay(history) == current_rows(history), f"seed {seed}\n{history.listing()}"
        if ordered:
            peer = Peer(history)
            peer.run(draw_plan(seed, history, faults=False))
            assert peer.table() == current_rows(history), f"seed {seed}\n{history.listing()}"


@given(histories(knobs=Knobs(operations=(3, 25))))
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_drawn_histories_reach_the_truth(history: History) -> None:
    assert replay(history) == current_rows(history)


def test_the_log_of_a_table_without_a_key_adds_up_to_the_truth() -> None:
    for layout in ("nokey", "nokey_month"):
        for seed in range(60):
            history = draw_history(seed, layout=layout, knobs=Knobs(truncate="alone"))
            assert folded_log(history) == current_rows(history), f"seed {seed}"


@pytest.mark.long
def test_the_log_has_each_change_once() -> None:
    for history in sample():
        places = [(entry.partition, entry.offset) for entry in change_log(history)]
        assert len(set(places)) == len(places)
        sent = {d.event.unit for d in history.deliveries if d.event.kind == "change"}
        assert len(sent) <= len(places)


# The checks can fail.


@pytest.mark.long
def test_differences_are_found() -> None:
    history = next(h for h in sample() if len(h.truth) > 1 and h.key)
    rows = [dict(row) for row in history.truth]
    assert difference(history, rows) == ""
    assert "missing" in difference(history, rows[1:])
    assert "too many" in difference(history, [*rows, rows[0]])
    assert difference(history, [rows[0] | {"tag": "other"}, *rows[1:]])


@pytest.mark.long
def test_sign_faults_are_found() -> None:
    history = next(h for h in sample() if h.key == ("id",) and len(h.truth) > 1 and h.truth[0]["n"] is not None)
    table, truth = history.table, history.truth
    rows = [row | {"_sign": 1, "_version": place} for place, row in enumerate(truth)]
    assert sign_faults(table, rows, "_sign", truth) == []
    old = rows[0] | {"n": 77}
    assert sign_faults(table, [*rows, old, old | {"_sign": -1}], "_sign", truth) == []
    assert sign_faults(table, [*rows, rows[0]], "_sign")
    assert sign_faults(table, [*rows, old | {"_sign": -1}], "_sign")
    # The −1 repeats the row but not its version: sums by key are right, the rows do not cancel.
    wrong = [*rows, old, old | {"_sign": -1, "_version": 9}]
    assert any("sum to -1" in fault for fault in sign_faults(table, wrong, "_sign", truth))
    assert sign_faults(table, rows[1:], "_sign", truth)


# What is drawn.


def facts(history: History) -> Iterator[str]:
    """Hard cases found in the records themselves, by their bytes."""
    for records in history.records.values():
        highest: tuple[int, ...] = ()
        seen: set[tuple[bytes | None, str, str]] = set()
        inner: dict[Any, int] = {}
        for record in records:
            event = json.loads(record.value or b"{}")
            event = event.get("payload", event)
            if "op" not in event:
                continue
            source = event["source"]
            position = commit_position(source)
            same = (record.key, event["op"], json.dumps(source))
            if highest and position and position < highest:
                yield "proved re-delivery" if same in seen else "position regress or in flight"
            seen.add(same)
            highest = max(highest, position)
            if source.get("lsn"):
                if source["lsn"] < inner.get("lsn", 0):
                    yield "lsn goes back"
                inner["lsn"] = source["lsn"]
            images = (event["before"] or {}).values(), (event["after"] or {}).values()
            if any("__debezium_unavailable_value" in values for values in images):
                half = dict(record.headers).get("__debezium.oldkey")
                yield "placeholder in create half" if half else "placeholder"
            if event["op"] == "d" and event["before"] and None not in (event["before"], record.key):
                yield "fillers" if event["before"].get("place") == 0 and event["before"]["day"] == 0 else "whole before"


def commit_position(source: dict[str, Any]) -> tuple[int, ...]:
    if "file" in source:
        return int(source["file"].rsplit(".", 1)[1]), int(source["pos"])
    if source.get("commit_lsn"):
        return (int(source["commit_lsn"].replace(":", ""), 16),)
    first = json.loads(source["sequence"])[0]
    return () if first is None else (int(first),)


@pytest.mark.long
def test_every_hard_case_is_drawn_often() -> None:
    found: Counter[str] = Counter()
    for history in sample():
        found.update(history.features.keys())
        found.update(set(facts(history)))
    wanted = {
        "key_change": 60,
        "key_change_across_partitions": 30,
        "placeholder in create half": 7,
        "placeholder": 20,
        "proved re-delivery": 40,
        "position regress or in flight": 10,
        "redelivery_in_mid_transaction": 12,
        "redelivered_key_change": 20,
        "swap": 12,
        "swap_of_equal_rows": 5,
        "swap_by_third_key": 25,
        "swap_as_updates": 8,
        "shift": 30,
        "back_and_forth": 30,
        "reinsert": 60,
        "place_move": 60,
        "overlap": 50,
        "lsn goes back": 15,
        "rollback": 40,
        "incremental": 18,
        "incremental_again": 5,
        "snapshot": 60,
        "snapshot_again": 3,
        "null_sequence": 20,
        "regress": 14,
        "rotation": 25,
        "noop_update": 60,
        "heartbeat": 15,
        "transaction_records": 6,
        "gap": 12,
        "fillers": 8,
        "whole before": 50,
    }
    assert {name: found[name] for name, least in wanted.items() if found[name] < least} == {}


@pytest.mark.long
def test_rare_cases_are_drawn_on_request() -> None:
    found: Counter[str] = Counter()
    for history in sample(ADVERSE):
        found.update(history.features.keys())
    for name in ("truncate", "redelivered_truncate", "gtid_replay", "snapshot_again"):
        assert found[name] >= 4, name


@pytest.mark.long
def test_every_connector_and_layout_is_drawn() -> None:
    drawn = sample()
    assert {h.connector for h in drawn} == set(CONNECTORS)
    assert {h.layout.name for h in drawn} == set(LAYOUTS)
    assert {h.identity for h in drawn} == {"default", "full", "nothing"}
    assert {h.encoding for h in drawn} == {"plain", "schema"}
    assert {len(h.records) for h in drawn} == {1, 2, 3}


@pytest.mark.long
def test_one_seed_gives_one_history_and_one_plan() -> None:
    for seed in range(40):
        first, second = draw_history(seed), draw_history(seed)
        assert first.records == second.records
        assert first.truth == second.truth
        assert draw_plan(seed, first) == draw_plan(seed, second)
    assert draw_history(1).records != draw_history(2).records


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("knobs", "absent"),
    [
        (Knobs(redelivery=False), "redelivery"),
        (Knobs(regress=False), "regress"),
        (Knobs(snapshot=False), "op_r"),
        (Knobs(overlapping=False), "overlap"),
        (Knobs(key_changes=False), "key_change"),
        (Knobs(extras=False), "heartbeat"),
        (Knobs(tombstones=False), "tombstone"),
    ],
)
def test_features_can_be_forbidden(knobs: Knobs, absent: str) -> None:
    if absent == "op_r":
        knobs = replace(knobs, incremental=False)
    assert all(draw_history(seed, knobs=knobs).features[absent] == 0 for seed in range(60))


@pytest.mark.long
def test_offsets_rise_and_keys_stay_in_their_partition() -> None:
    for history in sample():
        homes: dict[bytes, int] = {}
        for partition, records in history.records.items():
            offsets = [record.offset for record in records]
            assert offsets == sorted(set(offsets))
            assert all(history.starts[partition] <= offset < history.ends[partition] for offset in offsets)
            for record in records:
                if record.key is not None:
                    assert homes.setdefault(record.key, partition) == partition


# Plans.


@pytest.mark.parametrize("aligned", [False, True])
def test_plans_cover_each_partition_once_in_order(aligned: bool) -> None:
    faults = 0
    for seed, history in enumerate(sample()):
        plan = draw_plan(seed, history, aligned=aligned)
        at = dict(history.starts)
        for batch in plan:
            assert all(fault.chunk < len(batch.chunks) for fault in batch.faults)
            faults += len(batch.faults)
            for partition, (start, end) in batch.ranges.items():
                assert start == at[partition]
                assert end > start
            for chunk in batch.chunks:
                assert chunk.start == at[chunk.partition] < chunk.end
                at[chunk.partition] = chunk.end
        assert at == history.ends
    assert faults > 50


@given(runs(knobs=Knobs(operations=(3, 10))))
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
def test_runs_are_drawn_by_hypothesis(run: tuple[History, list[Any]]) -> None:
    history, plan = run
    records = sum(len(part) for part in history.records.values())
    taken = sum(
        chunk.start <= record.offset < chunk.end
        for batch in plan
        for chunk in batch.chunks
        for record in history.records[chunk.partition]
    )
    assert taken == records
