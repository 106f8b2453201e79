"""What one record costs: numbers, schemas and nesting are bounded before anything is calculated with them.

Each case once took from ten seconds to for ever, or gigabytes, or stopped its stream. The limits are far above what
they take and far below that, in the process's own time, so that a busy machine changes nothing.
"""

import importlib
import json
import pkgutil
import re
import time
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest

from ch_sink import decode as decode_room
from ch_sink import order, sources, types
from ch_sink.decode import Decoder, parts
from ch_sink.errors import ClickHouseUnavailable, PositionError, RegistryUnavailable, TableError
from ch_sink.model.change import ChangeBatch
from ch_sink.model.policy import policy_of
from ch_sink.ports import RegisteredSchema
from ch_sink.types.column import Column
from tests.support.avro import envelope
from tests.support.decoding import replacing
from tests.support.event import event, records, row
from tests.support.hostile_avro import costing
from tests.support.memory_stream import MemoryRegistry

SECONDS, MIB = 3.0, 300.0
TABLE = replacing(
    (Column("id", "Int64"), Column("v", "Nullable(String)"), Column("n", "Nullable(Decimal(38, 9))")), ("id",)
)
DOCUMENTS = replacing((Column("_id", "Int64"), Column("document", "String"), Column("a", "Nullable(String)")), ("_id",))
CONNECT, DATA = "org.apache.kafka.connect.data.", "io.debezium.data."


def cheap(values: list[bytes], schemas: dict[int, str] | None = None, table: Any = TABLE) -> ChangeBatch:
    """The values' batch, with a sound record before and after them."""
    sound = [] if table is DOCUMENTS else [event("c", row(1) | {"n": None})]
    held = MemoryRegistry({number: RegisteredSchema("AVRO", text) for number, text in (schemas or {}).items()})
    decoder, found = Decoder(table, policy_of(), registry=held), list[ChangeBatch]()
    given = records(*[(i, value) for i, value in enumerate([*sound, *values, *sound])])
    cost = costing(lambda: found.append(decoder.decode(given, decoder.learn(given))))
    assert cost.seconds < SECONDS
    assert cost.mib < MIB
    if sound:
        assert {0, len(values) + 1} <= set(found[0].source_index.tolist())
    return found[0]


def refused(values: list[bytes], why: str, schemas: dict[int, str] | None = None, table: Any = TABLE) -> None:
    bad = cheap(values, schemas, table).bad
    assert len(bad) == len(values)
    assert all(re.search(why, found.reason) for found in bad), bad[0].reason
    assert all(len(found.reason) < 500 for found in bad)
    assert "unexpected" not in {found.kind for found in bad}


def declared(field: dict[str, Any], literal: Any) -> bytes:
    """An event whose schema declares column ``v`` or ``n`` so."""
    image = {"type": "struct", "optional": True, "fields": [{"type": "int64", "field": "id"}, field]}
    schema = {"type": "struct", "fields": [{**image, "field": "after"}]}
    payload = json.loads(event("c", {"id": 2, field["field"]: literal}))
    return json.dumps({"schema": schema, "payload": payload}).encode()


def decimal(scale: str, column: str) -> bytes:
    field = {
        "type": "bytes",
        "field": column,
        "name": CONNECT + "Decimal",
        "parameters": {"scale": scale},
        "optional": True,
    }
    return declared(field, "Bw==")


def bits(length: int) -> bytes:
    field = {"type": "bytes", "field": "v", "name": DATA + "Bits", "parameters": {"length": str(length)}}
    return declared(field, "Bw==")


def variable(scale: int, value: bytes, column: str = "v") -> bytes:
    parts = [{"type": "int32", "field": "scale"}, {"type": "bytes", "field": "value"}]
    field = {"type": "struct", "field": column, "name": DATA + "VariableScaleDecimal", "fields": parts}
    return declared(field, {"scale": scale, "value": b64encode(value).decode()})


def number(text: str) -> bytes:
    return event("c", row(2) | {"n": "@"}).replace(b'"@"', text.encode())


@pytest.mark.parametrize("sequence", ["[" + " " * 800 + "x", "[" + " " * 900_000 + "x", "[" * 900_000])
def test_a_position_is_read_in_linear_time(sequence: str) -> None:
    block = {"connector": "postgresql", "name": "s", "sequence": sequence}
    value = event("c", row(2), **block)
    bad = Decoder(TABLE, policy_of()).decode(records((2, value))).bad
    assert "source.sequence" in bad[0].reason
    assert bad[0].kind == "position"
    assert costing(lambda: Decoder(TABLE, policy_of()).decode(records((2, value)))).seconds < SECONDS


def patterns() -> list[re.Pattern[Any]]:
    """All regular expressions of modules that read events."""
    found: list[re.Pattern[Any]] = []
    for room in (decode_room, order, sources, types):
        for module in pkgutil.walk_packages(room.__path__, room.__name__ + "."):
            values = vars(importlib.import_module(module.name)).values()
            found += [value for value in values if isinstance(value, re.Pattern)]
    return found


def test_no_regular_expression_that_reads_events_divides_a_text_in_many_ways() -> None:
    starts = (
        "",
        "[",
        '"',
        "{",
        "(",
        "1",
        "0x",
        "-",
        "1.",
        "1e",
        "'",
        "`",
        "id",
        "12:34:56",
        "2024-01-01T",
        "a(",
        "DateTime64(",
    )
    repeated = (" ", "0", "a", "\\", ".", ":", '"', "_", "-", "(", "::", "a.", ", ", "[ ", "\n")
    texts = [start + piece * 4_000 + "\0" for start in starts for piece in repeated]
    assert len(patterns()) > 15
    for pattern in patterns():
        for text in texts:
            given = text.encode() if isinstance(pattern.pattern, bytes) else text
            began = time.process_time()
            pattern.fullmatch(given)
            pattern.search(given[:600])
            assert time.process_time() - began < 0.5, (pattern, text[:40])


@pytest.mark.parametrize("column", ["v", "n"])
@pytest.mark.parametrize("scale", ["4000000", "-1000000", "1000000000", "1001"])
def test_a_scale_that_no_source_has_is_refused(scale: str, column: str) -> None:
    refused([decimal(scale, column)], f"scale of .*{scale}")


def test_bit_strings_are_not_filled_up_beyond_their_bytes() -> None:
    refused([bits(80_000_000)] * 20, "1 bytes is declared to have 80000000 bits")
    assert cheap([bits(12)]).after.column("v").to_pylist()[1] == b"000000000111"
    assert cheap([bits((1 << 31) - 1)]).after.column("v").to_pylist()[1] == b"111"


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([number("1e-199999")] * 100, "'n'"),
        ([number("1e199999")] * 100, "'n'"),
        ([number('"1e-16383"')] * 100, "'n'"),
        ([number("7" * 200_000)], "'n'"),
        ([number('"0.' + "3" * 200_000 + '"')], "'n'"),
        ([variable(-200_000, b"\7")] * 50, "scale"),
        ([variable(3, b"\7" * 700_000)], "digits"),
        ([variable(3, b"\7" * 700_000, "n")], "does not fit"),
        ([variable(-16_383, b"\7", "n")] * 50, "does not fit"),
        ([variable(16_383, b"\7", "n")] * 50, "digits after the point"),
    ],
)
def test_digits_and_exponents_are_compared_with_the_column_before_they_are_calculated(
    values: list[bytes], why: str
) -> None:
    refused(values, why)


def test_the_longest_number_of_any_source_is_kept_in_a_text_column() -> None:
    longest = 10**147_000 + 7
    raw = longest.to_bytes(longest.bit_length() // 8 + 1, "big")
    found = cheap([variable(16_383, raw)]).after.column("v").to_pylist()[1]
    assert len(found) == 147_002
    assert found.endswith(b"0007")


def refused_type(kind: Any, why: str) -> None:
    """The type of a column in Avro."""
    schema = envelope([{"name": "id", "type": "long"}, {"name": "v", "type": kind}])
    refused([b"\0\0\0\0\7\0\2"], why, {7: json.dumps(schema)})


def shared(depth: int, again: Callable[[str], Any]) -> Any:
    """A record that holds the one of the depth below twice, which its text has once."""
    made: Any = {"type": "record", "name": "R0", "fields": [{"name": "x", "type": "long"}]}
    for i in range(1, depth + 1):
        fields = [{"name": "a", "type": made}, {"name": "b", "type": again(f"R{i - 1}")}]
        made = {"type": "record", "name": f"R{i}", "fields": fields}
    return made


@pytest.mark.parametrize("depth", [17, 30, 60])
@pytest.mark.parametrize(
    "again", [lambda name: name, lambda name: ["null", name], lambda name: {"type": "array", "items": name}]
)
def test_a_named_type_that_is_used_again_and_again_is_counted_before_it_is_walked(
    depth: int, again: Callable[[str], Any]
) -> None:
    refused_type(shared(depth, again), "more than 30,000 types")


def test_a_long_chain_of_types_is_refused_whoever_calls() -> None:
    chain: Any = "long"
    for i in range(120):
        chain = {"type": "record", "name": f"R{i}", "fields": [{"name": "a", "type": chain}]}
    refused_type(chain, "100 deep")


@pytest.mark.parametrize("size", [1 << 31, (1 << 63) - 1, 1 << 63, 10**40])
def test_a_fixed_of_more_bytes_than_a_record_is_refused(size: int) -> None:
    refused_type({"type": "fixed", "name": "F", "size": size}, "F of .* bytes")


def test_a_schema_of_a_hundred_thousand_fields_is_refused_before_it_is_read() -> None:
    fields = [{"type": "int64", "field": "id"}, *({"type": "string", "field": f"f{i}"} for i in range(100_000))]
    schema = {"type": "struct", "fields": [{"type": "struct", "field": "after", "fields": fields}]}
    value = json.dumps({"schema": schema, "payload": json.loads(event("c", row(2)))}).encode()
    refused([value], "more than 20,000 types")


def test_a_schema_as_large_as_a_table_can_be_is_read() -> None:
    names = [f"f{i}" for i in range(4_096)]
    fields = [{"type": "int64", "field": "id"}, *({"type": "string", "optional": True, "field": n} for n in names)]
    image = {"type": "struct", "optional": True, "fields": fields}
    schema = {"type": "struct", "fields": [{**image, "field": "before"}, {**image, "field": "after"}]}
    payload = json.loads(event("c", {"id": 2, **dict.fromkeys(names)}))
    batch = cheap([json.dumps({"schema": schema, "payload": payload}).encode()])
    assert not batch.bad
    assert len(batch.unknown) == 4_096


def document(after: str | None, **more: Any) -> bytes:
    block = {"connector": "mongodb", "name": "s", "ts_ms": 1, "collection": "c", "ord": 1}
    return json.dumps({"before": None, "source": block, "op": "c", "after": after, **more}).encode()


def update(before: str, **description: Any) -> bytes:
    return document(None, before=before, op="u", updateDescription=description)


@pytest.mark.parametrize("levels", [210, 490, 900, 100_000])
@pytest.mark.parametrize("inner", ["1", '{"$numberLong":"1"}'])
def test_documents_deeper_than_mongodb_stores_are_refused_whoever_calls(levels: int, inner: str) -> None:
    text = '{"_id":1,"a":' + '{"b":' * levels + inner + "}" * (levels + 1)
    refused([document(text)], "levels|nested|recursion", table=DOCUMENTS)


def test_documents_as_deep_as_mongodb_stores_them_are_kept() -> None:
    text = '{"_id":1,"a":' + '{"b":' * 98 + '{"$numberLong":"1"}' + "}" * 99
    assert not cheap([document(text)], table=DOCUMENTS).bad


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (update('{"_id":1}', updatedFields=json.dumps({"a." * 250_000: 1})), "200 parts"),
        (update('{"_id":1,"a":[],"b":[]}', updatedFields='{"a.999998":1,"b.999998":1}'), "elements to arrays"),
        (document('{"_id":{"$numberDecimal":"1E-999999999"}}'), "Decimal128"),
    ],
)
def test_documents_that_would_grow_without_bounds_are_refused(value: bytes, why: str) -> None:
    refused([value], why, table=DOCUMENTS)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("cuts", [0, 15_000])
def test_many_small_changes_of_a_large_document_do_not_copy_it_each_time(cuts: int) -> None:
    large = json.dumps({"_id": 1, "a": [0] * 60_000, **{f"f{i}": 1 for i in range(20_000)}})
    fields = {f"f{i}": 2 for i in range(15_000)} | {f"a.{i}": 2 for i in range(15_000)}
    truncated = [{"field": "a", "newSize": 60_000 - i} for i in range(cuts)]
    value = update(large, updatedFields=json.dumps(fields), truncatedArrays=truncated)
    found = json.loads(cheap([value], table=DOCUMENTS).after.column("document").to_pylist()[0])
    assert sum(found["a"]) == 30_000
    assert len(found["a"]) == 60_000 - max(cuts - 1, 0)


def test_paths_of_a_json_column_are_not_written_out() -> None:
    table = replacing((Column("id", "Int64"), Column("v", "Nullable(JSON)"), Column("n", "Nullable(Int8)")), ("id",))
    bottom = ",".join(f'"{i}":1' for i in range(20_000))
    text = ('{"' + "n" * 2_000 + '":') * 150 + f"{{{bottom}}}" + "}" * 150
    value = json.dumps(json.loads(event("c", {"id": 2, "v": text, "n": None}))).encode()
    sound = event("c", {"id": 1, "v": "{}", "n": None})
    decoder = Decoder(table, policy_of())
    given = records((1, sound), (2, value))
    cost = costing(lambda: decoder.decode(given))
    assert cost.seconds < SECONDS
    assert cost.mib < MIB


@pytest.mark.parametrize(
    "error",
    [OverflowError("x"), IndexError("x"), RecursionError(), MemoryError(), AssertionError(), AttributeError("secret"),
     ZeroDivisionError(), PositionError("no position")],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_whatever_decoding_raises_is_the_letter_of_its_record(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    decoder = Decoder(TABLE, policy_of())
    poison(decoder, error, monkeypatch)
    given = records(*[(i, event("c", row(i, "poison" if i == 3 else "x") | {"n": None})) for i in range(8)])
    batch = decoder.decode(given, decoder.learn(given))
    assert [found.index for found in batch.bad] == [3]
    assert len(batch) == 7
    known = isinstance(error, (RecursionError, PositionError))
    assert batch.bad[0].kind == ("decode" if known else "unexpected")
    assert "secret" not in batch.bad[0].reason + caplog.text
    if not known:
        assert type(error).__name__ in batch.bad[0].reason


@pytest.mark.parametrize(
    "error",
    [RegistryUnavailable("away"), ClickHouseUnavailable("away"), TableError("no such column"), ConnectionError()],
    ids=lambda error: type(error).__name__,
)
def test_what_is_not_about_a_record_is_passed_on(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = Decoder(TABLE, policy_of())
    given = records(*[(i, event("c", row(i, "poison" if i == 3 else "x") | {"n": None})) for i in range(8)])
    profile = decoder.learn(given)
    poison(decoder, error, monkeypatch)
    with pytest.raises(type(error)):
        decoder.decode(given, profile)


@pytest.mark.long
def test_a_defect_that_every_record_meets_is_in_the_log_once_with_its_place(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(parts, "_shown", set())
    decoder = Decoder(TABLE, policy_of())
    given = records(*[(i, event("c", row(i, "poison") | {"n": None})) for i in range(50)])
    poison(decoder, KeyError("secret"), monkeypatch)
    assert len(decoder.decode(given, decoder.learn(given)).bad) == 50
    assert len(caplog.records) == 1
    assert "in raising" in caplog.text
    assert "secret" not in caplog.text


def poison(decoder: Decoder, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the readers raise an error for groups with a record that says so."""
    readers = decoder._readers
    read = readers.read

    def raising(framed: Any, payloads: list[bytes], *rest: Any) -> Any:
        if any(b"poison" in payload for payload in payloads):
            raise error
        return read(framed, payloads, *rest)

    monkeypatch.setattr(readers, "read", raising)
