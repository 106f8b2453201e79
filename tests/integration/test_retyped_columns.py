"""A source column changes its type while the stream runs: the table has the source's values, or the stream stops."""

import base64
import json
from typing import Any

import numpy as np
import pytest

from ch_sink.clickhouse import Client
from ch_sink.discovery.sample import sample_schema
from ch_sink.errors import StreamFailed
from ch_sink.model.change import Records
from ch_sink.model.policy import policy_of
from ch_sink.trust.subject import Options
from ch_sink.trust.verify import verified
from tests.support.choose import each_value
from tests.support.stream import Feed, make_table
from tests.support.trust import subject_of

_ID = {"field": "id", "type": "int64", "optional": False}
_TIME = "io.debezium.time."


def named(kind: str, name: str, **parameters: str) -> dict[str, Any]:
    return {"type": kind, "name": name, **({"parameters": parameters} if parameters else {})}


def array(kind: str) -> dict[str, Any]:
    return {"type": "array", "items": {"type": kind, "optional": True}}


def unscaled(number: int) -> str:
    return base64.b64encode(number.to_bytes(16, "big", signed=True)).decode()


DATE, TIME, YEAR = (named("int32", _TIME + name) for name in ("Date", "Time", "Year"))
MICROS, MICRO_TIME, NANO_TIME = (named("int64", _TIME + n) for n in ("MicroTimestamp", "MicroTime", "NanoTime"))
MILLIS = named("int64", _TIME + "Timestamp")
DECIMAL = named("bytes", "org.apache.kafka.connect.data.Decimal", **{"scale": "2", "connect.decimal.precision": "10"})
INT, LONG, FLOAT, DOUBLE = ({"type": kind} for kind in ("int32", "int64", "float", "double"))
TEXT, FLAG = {"type": "string"}, {"type": "boolean"}

STOPS = {
    "milliseconds to microseconds": (TIME, 1000, MICRO_TIME, 1_000_000),
    "microseconds to milliseconds": (MICRO_TIME, 1_000_000, TIME, 1000),
    "microseconds to nanoseconds": (MICRO_TIME, 1_000_000, NANO_TIME, 1_000_000_000),
    "a date to a number": (DATE, 19_000, INT, 5),
    "a number to a date": (INT, 5, DATE, 19_000),
    "a year to a number": (YEAR, 1999, INT, 7),
    "a date to a time": (DATE, 19_000, MICROS, 1_641_603_600_000_005),
    "a float to a wide decimal": (DOUBLE, 0.5, DECIMAL, unscaled(150)),
    "a float to an integer": (DOUBLE, 0.5, LONG, 9_007_199_254_740_993),
    "an integer to a float": (INT, 1, DOUBLE, 2.0),
    "an integer to a decimal": (INT, 1, DECIMAL, unscaled(200)),
    "a flag to an integer": (FLAG, True, INT, 1),
    "an integer to text": (LONG, 5, TEXT, "007"),
    "a date to text": (DATE, 19_000, TEXT, "2024-01-01"),
    "integers to texts": (array("int32"), [1], array("string"), ["2"]),
    "integers to wider ones in an array": (array("int32"), [1], array("int64"), [2]),
    "floats to wider ones in an array": (array("float"), [1.0], array("double"), [0.1]),
}
GOES_ON = {
    "a time to a date": (MICROS, 1_700_000_000_123_456, DATE, 19_000, "2022-01-08 00:00:00.000000"),
    "an integer to a flag": (INT, 5, FLAG, True, "1"),
    "text to an integer": (TEXT, "x", INT, 7, "7"),
    "an integer to a narrower one": (LONG, 5, INT, -7, "-7"),
    "finer times to coarser ones": (MICROS, 5, MILLIS, 1_700_000_000_123, "2023-11-14 22:13:20.123000"),
}
GROWS = {
    "fractions of a second": (MILLIS, 5, MICROS, 1_700_000_000_123_456, "2023-11-14 22:13:20.123456"),
    "floats": (FLOAT, 0.5, DOUBLE, 0.1, "0.1"),
}


def records(*states: tuple[dict[str, Any], Any]) -> Records:
    """One insert for each pair of a type of column x and a value, ids rising from 0."""
    keys, values = [], []
    for number, (kind, value) in enumerate(states):
        fields = [_ID, {"field": "x", "optional": True, **kind}]
        row = {"type": "struct", "optional": True, "fields": fields}
        images = [{**row, "field": "before"}, {**row, "field": "after"}, {"type": "string", "field": "op"}]
        place = {"ts_ms": 1_700_000_000_000, "snapshot": "false", "file": "b.3", "pos": 100 + number, "row": 0}
        source = {"connector": "mysql", "name": "my", **place}
        event = {"before": None, "after": {"id": number, "x": value}, "op": "c", "source": source}
        keys.append(json.dumps({"id": number}).encode())
        values.append(json.dumps({"schema": {"type": "struct", "fields": images}, "payload": event}).encode())
    at = np.arange(len(states), dtype=np.int64)
    return Records("t", 0, at, at, keys, values)


def fed(client: Client, database: str, evolve: str, *states: tuple[dict[str, Any], Any]) -> Feed:
    """A stream of these into the table that ``init`` makes from the first of them."""
    policy, given = policy_of(evolve=evolve, on_bad_record="dead_letter"), records(*states)
    target = make_table(client, database, "t", sample_schema(given.slice(0, 1)), policy=policy)
    return Feed(client, database, target, f"{database}/t", "t", policy, {0: given})


def shown(client: Client, database: str) -> dict[int, str]:
    return {r["id"]: r["s"] for r in client.rows(f"SELECT id, toString(x) AS s FROM {database}.t_current ORDER BY id")}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("case", "evolve"), each_value(STOPS, ["fail", "ignore", "add_columns"]))
def test_a_type_that_the_column_is_not_for_stops_before_a_value_is_stored(
    client: Client, database: str, evolve: str, case: str
) -> None:
    before, old, after, new = STOPS[case]
    feed = fed(client, database, evolve, (before, old), (after, new))
    with pytest.raises(StreamFailed, match=r"offset 1 has column 'x' as .* which was ") as stopped:
        feed.run()
    assert "resync" in str(stopped.value.hint)
    assert "COMMENT COLUMN `x` 'debezium: " in str(stopped.value.hint)
    assert 1 not in shown(client, database)
    assert not feed.letters_of.count()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("case", "evolve"), each_value(GOES_ON, ["fail", "ignore", "add_columns"]))
def test_a_type_whose_values_the_column_holds_goes_on(client: Client, database: str, evolve: str, case: str) -> None:
    before, old, after, new, text = GOES_ON[case]
    feed = fed(client, database, evolve, (before, old), (after, new))
    feed.run()
    assert (shown(client, database)[1], feed.letters_of.count()) == (text, {})


@pytest.mark.sampled(1)
@pytest.mark.parametrize("evolve", ["fail", "ignore", "add_columns"])
@pytest.mark.parametrize("case", GROWS)
def test_finer_values_are_stored_whole_or_not_at_all(client: Client, database: str, evolve: str, case: str) -> None:
    before, old, after, new, text = GROWS[case]
    # The old shape comes once more, as from another partition.
    feed = fed(client, database, evolve, (before, old), (after, new), (before, old))
    if evolve == "add_columns":
        feed.run()
        assert shown(client, database)[1] == text
        assert sorted(shown(client, database)) == [0, 1, 2]
        return
    with pytest.raises(StreamFailed, match="'x'") as stopped:
        feed.run()
    assert "MODIFY COLUMN `x` Nullable(" in str(stopped.value.hint)
    assert 1 not in shown(client, database)


@pytest.mark.parametrize("evolve", ["fail", "ignore", "add_columns"])
def test_a_widened_type_does_not_hide_another_change_of_the_same_column(
    client: Client, database: str, evolve: str
) -> None:
    feed = fed(client, database, evolve, (INT, 1), (LONG, 2), (DOUBLE, 3.0))
    with pytest.raises(StreamFailed, match="offset 2 has column 'x' as float64"):
        feed.run()
    assert 2 not in shown(client, database)


def test_a_comment_that_states_the_present_type_lets_the_stream_go_on(client: Client, database: str) -> None:
    feed = fed(client, database, "fail", (TIME, 1000))
    feed.run()
    policy = policy_of(evolve="fail", on_bad_record="dead_letter")
    later = {0: records((TIME, 1000), (MICRO_TIME, 1_000_000)).slice(1, 2)}
    again = Feed(client, database, feed.admin.detect(), f"{database}/t", "t", policy, later)
    with pytest.raises(StreamFailed, match=r"io\.debezium\.time\.MicroTime") as stopped:
        again.run()
    again.runner.stop()
    client.command(f"ALTER TABLE {database}.t MODIFY COLUMN x Nullable(Int64)")
    client.command(f"ALTER TABLE {database}.t UPDATE x = x * 1000 WHERE 1", settings={"mutations_sync": 1})
    client.command("ALTER" + str(stopped.value.hint).rpartition(": ALTER")[2])
    client.command(f"DROP VIEW {database}.t_current")
    last = Feed(client, database, feed.admin.inner.detect(), f"{database}/t2", "t", policy, later)
    last.run()
    rows = client.rows(f"SELECT id, toString(x) AS s FROM {database}.t ORDER BY id")
    assert [(r["id"], r["s"]) for r in rows] == [(0, "1000000"), (1, "1000000")]


def test_a_topic_that_holds_both_types_names_the_source_as_the_next_step(client: Client, database: str) -> None:
    feed = fed(client, database, "fail", (TIME, 1000), (MICRO_TIME, 1_000_000))
    feed.chunk(0, 1)
    with pytest.raises(StreamFailed) as stopped:
        feed.run()
    client.command(f"ALTER TABLE {database}.t MODIFY COLUMN x Nullable(Int64)")
    client.command("ALTER" + str(stopped.value.hint).rpartition(": ALTER")[2])
    again = Feed(client, database, feed.admin.inner.detect(), feed.name, "t", feed.policy, feed.records, again=feed)
    subject = subject_of(client, database, again, feed.name, ("id",))
    with pytest.raises(StreamFailed, match="offset 0 has column 'x'") as refused, verified(subject, Options()):
        pass
    assert "--against source" in str(refused.value.hint)
    assert "shadow" not in str(refused.value.hint)
