"""Keys that begin to state their types, or cease to, stop the stream where they would be read as other values."""

from dataclasses import replace
from typing import Any

import pytest

from ch_sink.errors import StreamFailed
from ch_sink.model.policy import policy_of
from ch_sink.pipeline.target import Target
from ch_sink.ports import FinishedRange, TableRefilled
from ch_sink.types.column import Column
from tests.support.decoding import replacing
from tests.support.hand import Event, mysql
from tests.support.memory_fed import MemoryFed

MILLIS = {"type": "int64", "name": "io.debezium.time.Timestamp"}
DATE = {"type": "int32", "name": "io.debezium.time.Date"}
MICROS = {"type": "int64", "name": "io.debezium.time.MicroTimestamp"}
BYTES, TEXT, NUMBER = {"type": "bytes"}, {"type": "string"}, {"type": "int64"}
UUID = {"type": "string", "name": "io.debezium.data.Uuid"}
DECIMAL = {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}}


def change(key: Any, big: str, at: int, schema: dict[str, Any] | None = None) -> Event:
    event = mysql("u", {"id": key}, {"id": key, "big": "?"}, {"id": key, "big": big}, at)
    if schema is None:
        return event
    fields = [{"field": "id", "optional": False, **schema}]
    return replace(event, key={"schema": {"type": "struct", "name": "k", "fields": fields}, "payload": {"id": key}})


def fed(kind: str, comment: str = "", engine: str = "replacing", partitions: int = 1, **settings: Any) -> MemoryFed:
    columns = (Column("id", kind, comment=comment), Column("big", "Nullable(String)"))
    return MemoryFed(engine, partitions=partitions, columns=columns, **settings)


@pytest.mark.parametrize("engine", ["replacing", "collapsing"])
@pytest.mark.parametrize(
    ("kind", "key", "schema"),
    [
        ("String", "YWI=", BYTES),
        ("DateTime64(3)", 1_700_000_000_000, MILLIS),
        ("String", 1_700_000_000_000, MILLIS),
        ("Decimal(9, 2)", "BNI=", DECIMAL),
    ],
)
@pytest.mark.parametrize("stated_first", [False, True])
@pytest.mark.parametrize("together", [False, True])
def test_keys_that_are_read_as_other_values_stop_the_stream(
    engine: str, kind: str, key: Any, schema: dict[str, Any], stated_first: bool, together: bool
) -> None:
    made = fed(kind, engine=engine)
    first, then = change(key, "a", 100), change(key, "b", 200, schema)
    if stated_first:
        first, then = change(key, "a", 100, schema), change(key, "b", 200)
    made.send(0, first)
    if not together:
        made.poll()
    made.send(0, then)
    with pytest.raises(StreamFailed, match=r"type of 'id'.*would not find the rows") as stopped:
        made.poll()
    assert "--against source" in (stopped.value.hint or "")
    assert len(made.view()) == (0 if together else 1)


@pytest.mark.parametrize(
    ("kind", "key", "first", "then"),
    [
        ("String", "YWI=", BYTES, TEXT),  # binary.handling.mode: bytes, hex
        ("String", "YWI=", DECIMAL, TEXT),  # decimal.handling.mode: precise, string
        ("String", "7", TEXT, {"type": "double"}),  # string, double
        ("DateTime64(6)", 1_700_000_000_000, MICROS, MILLIS),  # time.precision.mode: adaptive, connect
        ("Int64", 1_700_000_000_000, MICROS, MILLIS),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_keys_that_state_another_type_stop_the_stream(
    kind: str, key: Any, first: dict[str, Any], then: dict[str, Any], turned: bool
) -> None:
    made = fed(kind)
    first, then = (then, first) if turned else (first, then)
    made.feed(0, change(key, "a", 100, first))
    made.send(0, change(key, "b", 200, then))
    with pytest.raises(StreamFailed, match=r"type of 'id' \(.* and .*\).*would not find the rows") as stopped:
        made.poll()
    assert len(made.view()) == 1
    assert "COMMENT" not in (stopped.value.hint or "")


def test_with_the_comment_a_refilled_table_takes_both_forms_of_keys() -> None:
    made = fed("String")
    made.feed(0, change("YWI=", "a", 100))
    made.send(0, change("YWI=", "b", 200), change("YWI=", "c", 300, BYTES))
    with pytest.raises(StreamFailed, match="type of 'id'") as stopped:
        made.poll()
    assert "COMMENT COLUMN `id` 'debezium: bytes'" in (stopped.value.hint or "")
    made.runner.kill()
    made.stream.detected = fed("String", "debezium: bytes").stream.detected
    with pytest.raises(StreamFailed, match="type of 'id'"):
        made.poll()
    made.runner.kill()
    refill(made, TableRefilled("id", 0, 1))
    made.poll()
    assert made.view()[b"ab"] == "c"


@pytest.mark.parametrize(
    ("kind", "key", "first", "then"),
    [
        ("Date", 19000, DATE, {"type": "int32", "name": "org.apache.kafka.connect.data.Date"}),
        (
            "DateTime64(3)",
            1_700_000_000_000,
            MILLIS,
            {"type": "int64", "name": "org.apache.kafka.connect.data.Timestamp"},
        ),
        ("Decimal(9, 2)", "BNI=", DECIMAL, {**DECIMAL, "parameters": {"scale": "1"}}),
        ("String", 7, NUMBER, {"type": "int32"}),
    ],
)
def test_types_of_the_same_values_go_on(kind: str, key: Any, first: dict[str, Any], then: dict[str, Any]) -> None:
    made = fed(kind)
    made.feed(0, change(key, "a", 100, first))
    made.feed(0, change(key, "b", 200, then))
    assert "b" in made.view().values()


def test_the_step_for_a_history_keeps_its_changes() -> None:
    made = fed("String", engine="append")
    made.feed(0, change("YWI=", "a", 100))
    made.send(0, change("YWI=", "b", 200, BYTES))
    with pytest.raises(StreamFailed, match="type of 'id'") as stopped:
        made.poll()
    assert "--against topic" in (stopped.value.hint or "")


def test_the_step_names_the_table_s_column_and_keeps_its_comment() -> None:
    table = replacing((Column("nr", "String", comment="the number; "),), ("nr",))
    target = Target.of(table, policy_of(rename=(("id", "nr"),)))
    with pytest.raises(StreamFailed, match="type of 'id'") as stopped:
        target.expect_same_keys({"id": ("bytes", "plain")}, ("id",), 5)
    assert "COMMENT COLUMN `nr` 'the number; debezium: bytes'" in (stopped.value.hint or "")


def test_what_keys_are_read_as_is_known_in_partitions_that_had_none() -> None:
    made = fed("String", partitions=2)
    made.feed(0, change("YWI=", "a", 100))
    made.send(1, change("YWI=", "b", 200, BYTES))
    with pytest.raises(StreamFailed, match="type of 'id'"):
        made.poll()


def test_partitions_that_begin_at_once_with_other_types_stop_the_stream() -> None:
    made = fed("String", partitions=2)
    made.send(0, change("YWI=", "a", 100))
    made.send(1, change("YWI=", "b", 200, BYTES))
    made.poll()
    made.send(0, change("YWI=", "c", 300))
    with pytest.raises(StreamFailed, match="type of 'id'"):
        made.poll()


def test_keys_of_a_topic_that_filled_the_table_again_are_read_as_it_has_them() -> None:
    made = fed("String")
    made.feed(0, change("YWI=", "a", 100))
    made.runner.kill()
    made.recreate("another", 1)
    refill(made, TableRefilled("another", 0, 0), FinishedRange("t", "another", 0, 0, 0))
    made.send(0, change("YWI=", "b", 200, BYTES))
    made.poll()
    assert made.view()[b"ab"] == "b"


@pytest.mark.parametrize(
    ("kind", "key", "schema"),
    [
        ("String", "a", TEXT),
        ("String", "61f0c404-5cb3-11e7-907b-a6006ad3dba0", UUID),
        ("String", 7, NUMBER),
        ("Int64", 7, NUMBER),
        ("Int64", 7, MILLIS),
        ("Decimal(9, 2)", 7, NUMBER),
        ("UUID", "61f0c404-5cb3-11e7-907b-a6006ad3dba0", UUID),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_keys_that_are_read_as_before_go_on(kind: str, key: Any, schema: dict[str, Any], turned: bool) -> None:
    made = fed(kind)
    for number, stated in enumerate((turned, not turned, turned)):
        made.feed(0, change(key, f"v{number}", 100 + number, schema if stated else None))
    assert list(made.view().values()) == ["v2"]


def test_a_comment_states_the_type_for_keys_that_do_not() -> None:
    made = fed("DateTime64(3)", "debezium: int64 io.debezium.time.Timestamp")
    made.feed(0, change(1_700_000_000_000, "a", 100))
    made.feed(0, change(1_700_000_000_000, "b", 200, MILLIS))
    assert list(made.view().values()) == ["b"]


def refill(made: MemoryFed, fact: TableRefilled, *results: FinishedRange) -> None:
    ledger = made.stream.ledger
    ledger.claim("resync-1")
    ledger.record(fact)
    ledger.results(results)
    ledger.release()


def test_a_table_that_was_filled_again_has_its_rows_as_keys_are_read_now() -> None:
    made = fed("String")
    made.feed(0, change("YWI=", "a", 100))
    made.runner.kill()
    refill(made, TableRefilled("id", 0, made.read[0]))
    made.feed(0, change("YWI=", "b", 200, BYTES))
    assert made.view()[b"ab"] == "b"
