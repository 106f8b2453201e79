"""The compiled reader of Avro takes what follows the schema, and nothing else."""

import copy
import ctypes
import json
from typing import Any

import pytest

from ch_sink.decode.avro import definition
from ch_sink.decode.avro.definition import Unreadable, read
from ch_sink.decode.avro.schema import parse
from ch_sink.decode.avro.vectors import program, scan
from ch_sink.decode.native.library import Joined
from tests.support.avro import KEY, ROW, Topic, decode, event

ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
FIXED = {"type": "fixed", "name": "F", "size": 3}
NULL_FIRST, NULL_LAST = ["null", "long"], ["long", "null"]


def _row(schema: Any) -> Any:
    return parse(json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": schema}]}))


@pytest.mark.parametrize(
    ("schema", "raw", "value"),
    [
        ("long", b"\x80\x00", 0),  # in more bytes than it needs
        ("long", b"\xff" * 9 + b"\1", -(1 << 63)),
        ("long", b"\xfe" + b"\xff" * 8 + b"\1", (1 << 63) - 1),
        ("long", b"\x81" + b"\x80" * 8 + b"\0", -1),
        ("int", b"\xfe\xff\xff\xff\xff\x01", (1 << 35) - 1),  # of more than 32 bits
        ("string", b"\0", ""),
        ("string", b"\x84\0ab", "ab"),
        ("bytes", b"\x02\xff", b"\xff"),
        ("boolean", b"\1", True),
        ("float", b"\0\0\xc0\x3f", 1.5),
        (ENUM, b"\2", "B"),
        (FIXED, b"abc", b"abc"),
        (NULL_FIRST, b"\0", None),
        (NULL_FIRST, b"\2\1", -1),
        (NULL_LAST, b"\2", None),
        (NULL_LAST, b"\0\1", -1),
    ],
)
def test_what_follows_the_schema_is_read(library: ctypes.CDLL, schema: Any, raw: bytes, value: Any) -> None:
    node = _row(schema)
    made = program(node)
    assert made is not None
    found = scan(library, made, Joined([raw, raw]))
    assert found is not None
    assert found.tolist() == [{"a": value}] * 2 == read(node, [raw, raw]).tolist()


@pytest.mark.parametrize(
    ("schema", "raw"),
    [
        ("long", b""),
        ("long", b"\x80"),
        ("long", b"\x80" * 9 + b"\2"),  # more than 64 bits
        ("long", b"\xff" * 9 + b"\3"),
        ("long", b"\x80" * 10 + b"\0"),
        ("long", b"\0\0"),  # a byte more
        ("string", b"\1"),  # shorter than nothing
        ("string", b"\3a"),
        ("string", b"\4a"),
        ("bytes", b"\xfe" + b"\xff" * 8 + b"\1"),
        ("bytes", b"\xff" * 9 + b"\1"),
        ("boolean", b"\2"),
        ("boolean", b""),
        ("float", b"\0\0\0"),
        ("double", b"\0" * 7),
        (ENUM, b"\1"),
        (ENUM, b"\3"),
        (ENUM, b"\4"),
        (FIXED, b"ab"),
        (NULL_FIRST, b"\1"),
        (NULL_FIRST, b"\4"),
        (NULL_FIRST, b"\4\0"),
        (NULL_LAST, b"\3"),
        (NULL_LAST, b"\0"),
    ],
)
@pytest.mark.parametrize("wanted", [True, False])
def test_what_does_not_is_refused(library: ctypes.CDLL, schema: Any, raw: bytes, wanted: bool) -> None:
    node = _row(schema)
    with pytest.raises(Unreadable) as refused:
        read(node, [raw, raw], want=None if wanted else {})
    assert refused.value.places == [0, 1]
    made = program(node, None if wanted else {})
    assert made is not None
    assert scan(library, made, Joined([raw, raw])) is None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": "long"},
        {"type": "map", "values": "long"},
        ["null", "long", "string"],
        ["long"],
        {"type": "record", "name": "S", "fields": [{"name": "s", "type": ["null", "S"]}]},
    ],
)
def test_other_types_have_no_program(schema: Any) -> None:
    assert program(_row(schema)) is None
    assert program(_row(schema), {}) is None


def test_types_within_each_other_do_not_make_endless_programs() -> None:
    fields: Any = "long"
    for depth in range(13):
        kinds = [{"name": "a", "type": fields}, {"name": "b", "type": f"D{depth - 1}" if depth else "long"}]
        fields = {"type": "record", "name": f"D{depth}", "fields": kinds}
    assert program(parse(json.dumps(fields))) is None


@pytest.mark.parametrize("kind", ["bytes", ["null", "bytes"], {"type": "fixed", "name": "One", "size": 1}])
def test_an_operation_that_is_no_text_is_refused_as_without_it(
    library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    schema = copy.deepcopy(ROW)
    schema["fields"][-1]["type"] = kind
    topic = Topic()
    value = topic.write(schema, {**event("c", {"id": 1, "v": "x"}), "op": b"c"})
    pairs: list[tuple[bytes | None, bytes | None]] = [(topic.write(KEY, {"id": 1}), value)] * 3
    found = decode(topic, pairs).bad
    monkeypatch.setattr(definition, "library", lambda: None)
    assert [one.reason for one in found] == [one.reason for one in decode(topic, pairs).bad]
    assert len(found) == 3
