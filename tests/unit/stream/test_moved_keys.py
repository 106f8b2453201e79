"""Keys that are written in other bytes move between partitions: what was written before is read first."""

import json
from dataclasses import replace
from typing import Any

import pytest

from ch_sink.errors import StreamFailed
from ch_sink.model.policy import policy_of
from tests.support.hand import PLACEHOLDER, Event, key_change, mysql, postgres
from tests.support.kills import Kill
from tests.support.memory_fed import MemoryFed

FIELDS = [{"field": "id", "type": "int64", "optional": False}]
SCHEMA = {"type": "struct", "name": "a.Key", "fields": FIELDS}


def change(op: str, key: int, big: Any, at: int, *, schema: bool = False) -> Event:
    row = None if op == "d" else {"id": key, "big": big}
    event = postgres(op, {"id": key}, {"id": key} if op == "d" else None, row, at, at - 10)
    return replace(event, key={"schema": SCHEMA, "payload": {"id": key}}) if schema else event


def polled(fed: MemoryFed) -> None:
    """Poll until a look finds nothing."""
    idle = 0
    while idle < 2:
        idle = 0 if fed.poll() else idle + 1


@pytest.mark.parametrize("kill", [False, True])
@pytest.mark.parametrize("engine", ["collapsing", "versioned", "replacing"])
def test_what_was_written_before_is_read_first(engine: str, kill: bool) -> None:
    fed = MemoryFed(engine, policy=policy_of(version_strategy="kafka_offset"))
    fed.send(1, change("c", 9, "x", 100), *(change("u", 9, f"x{i}", 110 + i) for i in range(20)))
    fed.send(0, change("c", 1, "a", 200))
    polled(fed)
    # Row 1 moves from partition 1 to 0 with the new bytes of its key; partition 1 lags.
    fed.send(1, change("c", 2, "old", 300), change("u", 2, "older", 310), change("c", 3, "kept", 320))
    fed.send(0, change("u", 2, "new", 400, schema=True), change("d", 1, None, 410, schema=True))
    fed.poll(2)
    if kill:
        fed.runner.kill()
    polled(fed)
    assert fed.view() == {2: "new", 3: "kept", 9: "x19"}
    fed.send(0, change("u", 2, "newest", 500, schema=True))
    fed.send(1, change("d", 3, None, 510, schema=True))
    polled(fed)
    assert fed.view() == {2: "newest", 9: "x19"}
    if engine != "replacing":
        assert set(fed.sums().values()) <= {0, 1}


@pytest.mark.parametrize("kill", [False, True])
def test_keys_may_go_back_to_the_form_that_they_had(kill: bool) -> None:
    fed = MemoryFed("replacing", policy=policy_of(version_strategy="kafka_offset"))
    fed.send(1, *(change("u", 9, f"x{i}", 110 + i) for i in range(20)))
    fed.send(0, change("c", 1, "a", 200))
    polled(fed)
    fed.send(1, change("u", 2, "old", 300, schema=True))
    polled(fed)
    if kill:
        fed.runner.kill()
    # Row 2 is in partition 0 again, at a lower offset.
    fed.send(0, change("u", 2, "new", 400))
    polled(fed)
    assert fed.view() == {1: "a", 2: "new", 9: "x19"}


INT32 = {**SCHEMA, "fields": [{**FIELDS[0], "type": "int32"}]}


@pytest.mark.parametrize(
    ("key", "form"),
    [({"schema": INT32, "payload": {"id": 2}}, r"JSON with schema \w+"), ({"id": 2}, "JSON without schema")],
)
@pytest.mark.parametrize("place", [0, 1])
def test_partitions_that_begin_with_keys_in_different_forms_are_refused(
    key: dict[str, Any], form: str, place: int
) -> None:
    """As after retention has removed the older records of one of them."""
    fed = MemoryFed("collapsing")
    fed.send(1 - place, change("u", 2, "new", 200, schema=True))
    fed.send(place, replace(change("c", 2, "old", 100), key=key))
    with pytest.raises(StreamFailed, match=f"in different forms .*{form} in partition {place}"):
        fed.poll()
    assert all(total.next_offset == 0 for total in fed.stream.ledger.totals())


def test_connectors_that_share_a_topic_keep_their_schemas() -> None:
    """Each waits once, where it comes first."""
    fed = MemoryFed("collapsing")
    fed.send(0, change("c", 1, "a", 100, schema=True))
    polled(fed)
    other = {"schema": {**SCHEMA, "name": "other.Key"}, "payload": {"id": 2}}
    fed.send(1, replace(change("c", 2, "b", 200), key=other))
    polled(fed)
    fed.send(0, change("u", 1, "c", 300, schema=True))
    assert fed.poll() == {0: (1, 2)}
    fed.send(
        1, replace(change("u", 2, "d", 400), key={"schema": {**SCHEMA, "name": "other.Key"}, "payload": {"id": 2}})
    )
    assert fed.poll() == {1: (1, 2)}
    assert fed.view() == {1: "c", 2: "d"}


@pytest.mark.parametrize("added", [False, True])
def test_times_go_on_above_those_of_the_former_partition(added: bool) -> None:
    """A change that was dated ahead has raised the times behind it."""
    fed = MemoryFed("replacing", version="DateTime64(3)")
    late = [dated("c", 9, "x", 110, 60_000), dated("c", 2, "old", 120, 1_000), dated("u", 2, "older", 130, 2_000)]
    fed.send(0, dated("c", 1, "a", 100, 0))
    fed.send(1, *late)
    polled(fed)
    if added:
        fed.send(2, dated("u", 2, "new", 200, 5_000))
        fed.send(3, dated("u", 1, "b", 210, 6_000))
    else:
        fed.send(0, *(replace(dated(*e), key={"schema": SCHEMA, "payload": {"id": e[1]}}) for e in NEWER))
    polled(fed)
    assert fed.view() == {1: "b", 2: "new", 9: "x"}


NEWER: list[tuple[str, int, str, int, int]] = [("u", 2, "new", 200, 5_000), ("u", 1, "b", 210, 6_000)]


def dated(op: str, key: int, big: str, at: int, after: int) -> Event:
    row = {"id": key, "big": big}
    return mysql(op, {"id": key}, None if op == "c" else row, row, at, ts_ms=1_700_000_000_000 + after)


def test_a_truncate_is_refused_while_partitions_wait() -> None:
    """What waits would be stored in the next epoch, above the truncate, whenever it was made."""
    fed = MemoryFed("collapsing")
    fed.send(0, change("c", 1, "a", 100))
    fed.send(1, change("c", 9, "x", 110))
    polled(fed)
    fed.send(0, change("u", 1, "b", 200, schema=True))
    fed.send(1, Event(None, postgres("t", None, None, None, 220, 215).value))
    with pytest.raises(StreamFailed, match="a truncate cannot be applied: keys have moved"):
        fed.poll()
    assert fed.view() == {1: "a", 9: "x"}


@pytest.mark.parametrize("nth", [1, 2])
def test_what_waits_is_released_in_a_later_life_as_of_the_partition_s_place(nth: int) -> None:
    fed = MemoryFed("replacing", policy=policy_of(version_strategy="kafka_offset"))
    fed.send(0, change("c", 3, "w", 50))
    fed.send(1, change("c", 4, "v", 60))
    polled(fed)
    create = postgres("c", {"id": 1}, None, {"id": 1, "big": PLACEHOLDER}, 1000, 995)
    gone, tombstone, moved = key_change(postgres("d", {"id": 4}, {"id": 4}, None, 1000, 995), create)
    fed.send(0, moved, change("u", 1, "n1", 1200))
    fed.poll()
    fed.send(1, gone, tombstone)
    fed.poll(kill=Kill("after insert", nth=nth))
    polled(fed)
    fed.send(0, change("u", 1, "n2", 1300))
    polled(fed)
    assert fed.view() == {1: "n2", 3: "w"}


def test_a_partition_that_waits_does_not_hold_up_others() -> None:
    fed = MemoryFed("collapsing", partitions=3)
    fed.send(0, change("c", 1, "a", 100))
    polled(fed)
    fed.send(0, change("u", 1, "b", 200, schema=True))
    fed.send(1, change("c", 5, "e", 210))
    fed.poll()
    fed.send(2, change("c", 6, "f", 220))
    fed.poll()
    assert fed.view() == {1: "a", 5: "e", 6: "f"}
    assert fed.runner.coordinator.withheld == 1
    polled(fed)
    assert fed.view() == {1: "b", 5: "e", 6: "f"}


def test_one_look_counts_once() -> None:
    """A job whose broker is slow to answer plans by what it knows: its ends may be older than what waits."""
    fed = MemoryFed("collapsing")
    fed.send(0, change("c", 1, "a", 100))
    polled(fed)
    fed.send(0, change("u", 1, "b", 200, schema=True))
    fed.poll()
    look = fed.topic.state("t")
    assert [fed.runner.coordinator.plan(look) for _ in range(3)] == [[], [], []]
    assert fed.runner.coordinator.withheld == 1
    polled(fed)
    assert fed.view() == {1: "b"}


def test_positions_order_changes_that_need_no_stored_row() -> None:
    """Nothing waits: a mutation of the rule that makes it wait fails here."""
    fed = MemoryFed("replacing")
    fed.send(0, *(replace(e, value=as_mysql(e)) for e in (change("c", 1, "a", 100),)))
    polled(fed)
    fed.send(0, *(replace(e, value=as_mysql(e)) for e in (change("u", 1, "b", 200, schema=True),)))
    assert fed.poll() == {0: (1, 2)}
    assert fed.view() == {1: "b"}


def as_mysql(event: Event) -> dict[str, Any]:
    value = json.loads(json.dumps(event.value))
    value["source"] = {"connector": "mysql", "name": "my", "file": "b.1", "pos": value["source"]["lsn"], "row": 0}
    return dict(value)
