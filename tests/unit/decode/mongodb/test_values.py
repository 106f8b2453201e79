"""Extended JSON of every BSON type, held against the bson package, which writes and reads it in its own way."""

import datetime
import json
import math
import uuid
from typing import Any

import pytest
from bson import DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp, json_util
from bson.binary import Binary, UuidRepresentation
from bson.code import Code
from bson.datetime_ms import DatetimeMS
from bson.json_util import JSONMode, JSONOptions
from hypothesis import given, settings
from hypothesis import strategies as st

from ch_sink.decode.mongodb.texts import canonical_text, key_text, plain_text
from ch_sink.decode.mongodb.values import parse
from ch_sink.errors import DecodeError
from tests.support.mongodb import DIALECTS, Dialect, text

BACK = JSONOptions(
    json_mode=JSONMode.CANONICAL,
    datetime_conversion=json_util.DatetimeConversion.DATETIME_MS,
    uuid_representation=UuidRepresentation.UNSPECIFIED,
)

VALUES: dict[str, Any] = {
    "object id": ObjectId("596e275826f08b2730779e1f"),
    "text": 'ünïcode ☃ \U0001f600 "quoted" \\ \n \u0000',
    "empty text": "",
    "text like a number": "12",
    "int32": 2**31 - 1,
    "int32 least": -(2**31),
    "int64": Int64(2**63 - 1),
    "int64 least": Int64(-(2**63)),
    "int64 of few digits": Int64(7),
    "double": 0.1,
    "double of a whole number": 10.0,
    "double large": 1.7976931348623157e308,
    "double small": 5e-324,
    "double zero": 0.0,
    "double minus zero": -0.0,
    "nan": math.nan,
    "infinity": math.inf,
    "minus infinity": -math.inf,
    "decimal": Decimal128("1234567890123456789012345678901234"),
    "decimal of cents": Decimal128("1.10"),
    "decimal with exponent": Decimal128("1E+6144"),
    "decimal minus zero": Decimal128("-0"),
    "decimal nan": Decimal128("NaN"),
    "decimal infinity": Decimal128("-Infinity"),
    "true": True,
    "false": False,
    "null": None,
    "date": datetime.datetime(2024, 2, 29, 12, 34, 56, 789000, tzinfo=datetime.UTC),
    "date before 1970": DatetimeMS(-1),
    "date of year 1": DatetimeMS(-62135596800000),
    "date beyond year 9999": DatetimeMS(253402300800000),
    "date of the largest number": DatetimeMS(2**63 - 1),
    "date of the least number": DatetimeMS(-(2**63)),
    "binary": Binary(b"kafka", 0),
    "binary empty": Binary(b"", 0),
    "binary of the user": Binary(bytes(range(256)), 128),
    "binary old": Binary(b"old", 2),
    "uuid": Binary.from_uuid(uuid.UUID("00112233-4455-6677-8899-aabbccddeeff"), UuidRepresentation.STANDARD),
    "uuid of old drivers": Binary(bytes(range(16)), 3),
    "regex": Regex("^a.*[\"/]", "im"),
    "code": Code("function() { return 1; }"),
    "code with scope": Code("f(x)", {"x": Int64(1), "y": ObjectId("596e275826f08b2730779e1f")}),
    "timestamp": Timestamp(4294967295, 1),
    "min key": MinKey(),
    "max key": MaxKey(),
    "reference": DBRef("orders", ObjectId("596e275826f08b2730779e1f"), "shop"),
    "array": [1, [Int64(2), []], {"a": None}],
    "document": {"a": {"b": {}}, "": 1, "a.b": 2, "$x": 3},
}  # fmt: skip


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_type_comes_through_in_every_dialect(name: str, dialect: Dialect) -> None:
    given_text = text({"v": VALUES[name]}, dialect)
    back = json_util.loads(canonical_text(parse(given_text)).decode(), json_options=BACK)
    want = json_util.loads(given_text, json_options=BACK)
    assert bson_equal(back, want), (given_text, back)
    if dialect == "canonical":
        assert bson_equal(back, json_util.loads(text({"v": VALUES[name]}, "canonical"), json_options=BACK))


def bson_equal(one: Any, other: Any) -> bool:
    """Equal in type and value; NaN equals itself, and minus zero only itself."""
    if isinstance(one, float) and isinstance(other, float):
        return (one != one and other != other) or (one == other and math.copysign(1, one) == math.copysign(1, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(bson_equal(one[k], other[k]) for k in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(bson_equal, one, other))
    if isinstance(one, Code) and isinstance(other, Code):
        return str(one) == str(other) and bson_equal(one.scope or {}, other.scope or {})
    if isinstance(one, int) and isinstance(other, int) and not isinstance(one, bool):
        return one == other and isinstance(one, bool) == isinstance(other, bool)
    return type(one) is type(other) and one == other


SHOWN: dict[str, tuple[str, Any]] = {
    "object id": ('{"$oid": "596e275826f08b2730779e1f"}', "596e275826f08b2730779e1f"),
    "date of v1": ('{"$date": -1}', "1969-12-31T23:59:59.999Z"),
    "date of v1 shell": ('{"$date": "1969-12-31T23:59:59.999Z"}', "1969-12-31T23:59:59.999Z"),
    "date with a zone": ('{"$date": "1970-01-01T01:59:59.999+02:00"}', "1969-12-31T23:59:59.999Z"),
    "long": ('{"$numberLong": "1004"}', 1004),
    "bare nan": ("NaN", "NaN"),
    "bare infinity": ("-Infinity", "-Infinity"),
    "binary of v1": ('{"$binary": "a2Fma2E=", "$type": "00"}', {"$binary": {"base64": "a2Fma2E=", "subType": "00"}}),
    "binary of the v1 shell": (
        '{"$binary": "a2Fma2E=", "$type": "0"}',
        {"$binary": {"base64": "a2Fma2E=", "subType": "00"}},
    ),
    "uuid of the shell": ('{"$uuid": "00112233-4455-6677-8899-aabbccddeeff"}', "00112233-4455-6677-8899-aabbccddeeff"),
    "undefined": ('{"$undefined": true}', None),
    "symbol": ('{"$symbol": "s"}', "s"),
    "pointer": (
        '{"$dbPointer": {"$ref": "a.b", "$id": {"$oid": "596e275826f08b2730779e1f"}}}',
        {"$dbPointer": {"$ref": "a.b", "$id": {"$oid": "596e275826f08b2730779e1f"}}},
    ),
    "stored query": ('{"$regex": {"a": 1}}', {"$regex": {"a": 1}}),
    "reference": (
        '{"$ref": "orders", "$id": {"$oid": "596e275826f08b2730779e1f"}}',
        {"$ref": "orders", "$id": "596e275826f08b2730779e1f"},
    ),
}
"""Extended JSON, and the plain JSON of it."""


@pytest.mark.parametrize(("written", "plain"), SHOWN.values(), ids=SHOWN)
def test_plain_json_shows(written: str, plain: Any) -> None:
    found = plain_text(parse(f'{{"v": {written}, "w": [{written}]}}'))
    assert json.loads(found) == {"v": plain, "w": [plain]}


def test_plain_json_of_numbers_keeps_every_digit() -> None:
    found = plain_text(parse('{"a": {"$numberLong": "9007199254740993"}, "b": 10.0, "c": -0.0, "d": 1e300}'))
    assert found == b'{"a":9007199254740993,"b":10.0,"c":-0.0,"d":1e300}'


def test_plain_json_can_be_read_back() -> None:
    """What is stored is where later updates start: reading it gives the same text again."""
    for value in VALUES.values():
        for dialect in DIALECTS:
            stored = plain_text(parse(text({"v": value}, dialect)))
            assert plain_text(parse(stored)) == stored


@pytest.mark.parametrize(
    "wrong",
    [
        '{"$oid": "xyz"}', '{"$oid": 5}', '{"$date": true}', '{"$date": "yesterday"}', '{"$numberLong": "9e99"}',
        '{"$numberLong": "9223372036854775808"}', '{"$numberDecimal": "ten"}', '{"$numberDecimal": 1}',
        '{"$numberInt": 5.9}', '{"$numberLong": true}', '{"$numberLong": "1_0"}',
        '{"$date": {"$numberLong": "5", "x": 1}}', '{"$binary": "***", "$type": "00"}', '{"$uuid": "x"}',
        '{"$timestamp": {"t": 1}}', '{"a": ', "", "{]",
    ],
)  # fmt: skip
def test_what_is_no_extended_json_is_an_error(wrong: str) -> None:
    with pytest.raises(DecodeError):
        parse(wrong)


def test_numbers_that_mongodb_holds_equal_have_one_key() -> None:
    ones = ("1", "1.0", '{"$numberLong": "1"}', '{"$numberDecimal": "1.00"}', '{"$numberInt": "1"}')
    assert {key_text(parse(one)) for one in ones} == {"1"}
    wide = "1234567890123456789012345678901234"
    assert key_text(parse(f'{{"$numberDecimal": "{wide}"}}')) == wide
    assert key_text(parse(f'{{"$numberDecimal": "0.{wide}"}}')) == f"0.{wide}"
    assert key_text(parse('{"$numberDecimal": "1E+6144"}')) == "1" + "0" * 6144
    assert {key_text(parse(zero)) for zero in ("0", "-0.0", '{"$numberDecimal": "-0.00"}')} == {"0"}
    for number in ("0.1", "1e23"):  # no double is this number
        assert key_text(parse(number)) != key_text(parse(f'{{"$numberDecimal": "{number}"}}'))
    near = '{"$numberDecimal": "99999999999999991611392"}'
    assert key_text(parse("1e23")) == key_text(parse(near)) == "99999999999999991611392"
    assert key_text(parse('"1"')) == "1"  # a text: a collection that has both needs another key column


leaves = st.one_of(
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**63), 2**63 - 1).map(Int64),
    st.floats(),
    st.booleans(),
    st.none(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.binary(min_size=12, max_size=12).map(ObjectId),
    st.integers(-(2**63), 2**63 - 1).map(DatetimeMS),
    st.binary(max_size=20).map(lambda b: Binary(b, 0)),
    st.decimals(places=3, min_value=-(10**9), max_value=10**9).map(Decimal128),
)
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="$\0"), max_size=4)
trees = st.recursive(leaves, lambda t: st.lists(t, max_size=3) | st.dictionaries(names, t, max_size=3), max_leaves=12)


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(names, trees, max_size=4), st.sampled_from(DIALECTS))
def test_any_document_comes_through(document: dict[str, Any], dialect: Dialect) -> None:
    given_text = text(document, dialect)
    back = json_util.loads(canonical_text(parse(given_text)).decode(), json_options=BACK)
    assert bson_equal(back, json_util.loads(given_text, json_options=BACK))
