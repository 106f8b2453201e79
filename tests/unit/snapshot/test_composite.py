"""Literals of databases in the connector's form. Recorded values: tests/integration."""

import struct
from base64 import b64decode

import pytest

from ch_sink.snapshot.encode import encoder
from ch_sink.snapshot.values import array, bits, geometry, hstore_json, point
from ch_sink.types.connect import SourceType


@pytest.mark.parametrize(
    ("literal", "elements"),
    [
        ("{}", []),
        ("{a,NULL,b}", ["a", None, "b"]),
        ('{"a,b","q\\"","NULL","","x\\\\y"}', ["a,b", 'q"', "NULL", "", "x\\y"]),
        ('{" pad ",é🦀}', [" pad ", "é🦀"]),
        ("{{1,2},{3,4}}", None),
        ("[-1:1]={1,NULL,2}", ["1", None, "2"]),
        ("[0:0][0:1]={{1,2}}", None),
    ],
)
def test_arrays_of_one_dimension_are_read(literal: str, elements: list[str | None] | None) -> None:
    assert array(str)(literal) == elements


@pytest.mark.parametrize(
    ("literal", "elements"),
    [("{{1,2},{3,4}}", [None, None]), ("{{{1,2}},{{3,4}},{{5,6}}}", [None] * 3), ("[0:0][0:1]={{1,2}}", [None])],
)
def test_an_array_of_arrays_has_a_null_for_each_as_the_connector_sends_it(literal: str, elements: list[None]) -> None:
    encode = encoder(SourceType("array", items=SourceType("int32")), "integer[]")
    assert encode(literal) == elements


def test_an_array_that_the_connector_leaves_out_is_null() -> None:
    decimals = SourceType("bytes", "org.apache.kafka.connect.data.Decimal", (("scale", "1"),))
    encode = encoder(SourceType("array", items=decimals), "numeric(4,1)[]")
    assert encode("{1.5,NULL}") == ["Dw==", None]
    assert encode("{1.5,NaN}") is None
    # Of an enum's array the schema says that no element is null.
    labels = SourceType("string", "io.debezium.data.Enum", optional=False)
    encode = encoder(SourceType("array", items=labels), "mood[]")
    assert encode("{sad,ok}") == ["sad", "ok"]
    assert encode("{sad,NULL}") is None
    assert encode('{sad,"NULL"}') == ["sad", "NULL"]


def test_elements_are_read_as_their_type_says() -> None:
    numbers = SourceType("array", items=SourceType("int32"))
    encode = encoder(numbers, "integer[]")
    assert encode("{1,NULL,-3}") == [1, None, -3]
    raw = encoder(SourceType("array", items=SourceType("bytes")), "bytea[]")
    assert raw is not None
    assert [b64decode(v) for v in raw('{"\\\\x00ff","\\\\x"}')] == [b"\x00\xff", b""]
    assert encoder(SourceType("string"), "integer[]") is None


def test_pairs_have_the_order_of_a_java_hash_map() -> None:
    # {"a", "b", "Aa", "BB", "é"} as HashMap.keySet() lists it: "Aa" and "BB" have one hash and stay as they came.
    assert hstore_json('"b"=>"1", "a"=>NULL, "Aa"=>"x\\"y", "BB"=>"z"') == '{"Aa":"x\\"y","BB":"z","a":null,"b":"1"}'
    assert hstore_json("") == "{}"
    assert hstore_json('"k"=>"\x1f\n"') == '{"k":"\\u001F\\n"}'


def test_bits_in_a_column_of_integers_are_their_number() -> None:
    encode = encoder(SourceType("int64"), "bit(12)")
    assert encode("000000000011") == encode(b"\x00\x03") == 3
    assert encode("") == 0


def test_bits_are_little_endian_bytes() -> None:
    assert b64decode(bits("101010101010")) == b64decode(bits(b"\x0a\xaa")) == b"\xaa\x0a"


def test_shapes_are_well_known_binary() -> None:
    of_postgres, of_mysql = point("(1.5,-2)"), point(bytes(4) + struct.pack("<BIdd", 1, 1, 1.5, -2))
    assert of_postgres == of_mysql == {"x": 1.5, "y": -2.0, "wkb": "AQEAAAAAAAAAAAD4PwAAAAAAAADA", "srid": None}
    extended = struct.pack("<BIIdd", 1, 0x20000001, 4326, 1.5, -2)
    assert geometry(extended.hex())["srid"] == 4326
    assert geometry((4326).to_bytes(4, "little") + struct.pack("<BIdd", 1, 1, 1, 2))["srid"] == 4326


@pytest.mark.parametrize(
    ("mode", "text"), [("hex", "00ff"), ("base64", "AP8="), ("base64-url-safe", "AP8="), ("bytes", None)]
)
def test_binary_columns_that_the_connector_sends_as_text_follow_its_mode(mode: str, text: str | None) -> None:
    encode = encoder(SourceType("string"), "bytea", mode)
    assert (encode("\\x00ff") if encode is not None else None) == text
    assert encoder(SourceType("string"), "bytea[]", mode) is None
