"""Decimals as bytes, base64, numbers and texts."""

import base64
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ch_sink.clickhouse import Client
from ch_sink.errors import DecodeError
from ch_sink.types import OutOfRange, converter
from ch_sink.types.column import Column, ValuePolicy
from ch_sink.types.connect import SourceType
from ch_sink.types.decimals import decimal_text, read_text
from ch_sink.types.text_columns import _check
from tests.unit.types.columns import TEXT, make


@given(st.integers(-(10**80), 10**80), st.integers(-5, 90))
def test_decimal_texts_equal_pythons(unscaled: int, scale: int) -> None:
    text = decimal_text((unscaled, scale))
    assert Decimal(text) == Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -scale))
    assert "e" not in text.lower()
    digits, found = read_text(text)
    assert digits * 10 ** max(0, -scale) * 10**0 == unscaled * 10 ** max(0, -scale) * 10 ** max(0, 0) or found == max(
        scale, 0
    )


def test_thousands_of_digits() -> None:
    assert decimal_text((10**20_000 - 1, 3)) == "9" * 19_997 + ".999"
    assert read_text("7" * 20_000)[0] % 10**9 == 777_777_777


@given(st.lists(st.none() | st.integers(-(10**38) + 1, 10**38 - 1), max_size=5))
def test_decimals_from_bytes(values: list[int | None]) -> None:
    source = SourceType("bytes", "org.apache.kafka.connect.data.Decimal", (("scale", "7"),))
    raw = [None if v is None else v.to_bytes(max(1, (v.bit_length() + 8) // 8), "big", signed=True) for v in values]
    expected = [None if v is None else Decimal(v).scaleb(-7, Context(prec=80)) for v in values]
    assert make(source, "Decimal(38, 7)").convert(raw).array.to_pylist() == expected
    assert make(source, "Decimal(76, 7)").convert(raw).array.to_pylist() == expected
    assert make(source, "Decimal(76, 9)").convert(raw).array.to_pylist() == expected


NUMBERS = st.from_regex(r"[+-]?[0-9]{0,45}(\.[0-9]{0,45})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)


@pytest.mark.long
@given(st.lists(st.none() | NUMBERS | st.sampled_from(["NaN", "", " 1", "1_0", "٣"]), max_size=4), st.data())
def test_many_decimal_texts_are_read_as_each_alone_is(texts: list[str | None], data: st.DataObject) -> None:
    made = decimal_column(TEXT, data)
    assert outcome(made, texts) == joined(made, texts)


@given(st.lists(st.none() | st.integers() | st.decimals(), max_size=4), st.data())
def test_many_numbers_are_read_as_each_alone_is(numbers: list[Any], data: st.DataObject) -> None:
    made = decimal_column(None, data)
    assert outcome(made, numbers) == joined(made, numbers)


def decimal_column(source: SourceType | None, data: st.DataObject) -> Any:
    precision = data.draw(st.integers(1, 76))
    column = Column("x", f"Decimal({precision}, {data.draw(st.integers(0, precision))})")
    return converter(source, column, encoding="json", policy=ValuePolicy(), omits=False)


def outcome(made: Any, values: list[Any]) -> Any:
    """The values, or None where one of them is refused."""
    try:
        return made.convert(values).array.to_pylist()
    except DecodeError:
        return None


def joined(made: Any, values: list[Any]) -> Any:
    """The same one by one, by the exact way."""
    found = [outcome(made._slow, [value]) for value in values]
    return None if None in found else [value for one in found for value in one]


def test_a_slice_of_decimal_bytes_is_read_from_its_own_start() -> None:
    source = SourceType("bytes", "org.apache.kafka.connect.data.Decimal", (("scale", "2"),))
    raw = pa.array([b"\x01", None, b"\x05", b"\xff"], pa.binary())
    made = make(source, "Decimal(10, 2)")
    whole = made.convert(raw).array.to_pylist()
    assert whole == [Decimal("0.01"), None, Decimal("0.05"), Decimal("-0.01")]
    for start in range(4):
        assert made.convert(raw.slice(start)).array.to_pylist() == whole[start:]


@given(st.lists(st.none() | st.binary(max_size=17) | st.text("AQgw/+=-_ é\n", max_size=13), max_size=30))
def test_many_base64_texts_are_read_as_each_alone_is(values: list[bytes | str | None]) -> None:
    texts = [base64.b64encode(value).decode() if isinstance(value, bytes) else value for value in values]
    source = SourceType("bytes", "org.apache.kafka.connect.data.Decimal", (("scale", "2"),))
    for column in ("Decimal(18, 2)", "Decimal(38, 2)", "Decimal(76, 2)", "Decimal(38, 4)"):
        made: Any = make(source, column)
        assert outcome(made, texts) == joined(made, texts)


@pytest.mark.parametrize("text", ["A===", "=AAA", "AA=A", "AAA", "AA-A"])
def test_broken_base64_is_refused(text: str) -> None:
    source = SourceType("bytes", "org.apache.kafka.connect.data.Decimal", (("scale", "2"),))
    with pytest.raises(DecodeError, match="base64"):
        make(source, "Decimal(18, 2)").convert(["AAAA", text])


LEAST, MOST = -(2**63), 2**64 - 1


@pytest.mark.parametrize("number", [LEAST - 1, MOST + 1, 10**30])
@pytest.mark.parametrize("around", ['{{"a":{}}}', '{{"a":[1,{}]}}', '{{"a":{{"b":[{{"c":{}}}]}}}}'])
def test_an_integer_beyond_64_bits_is_out_of_range_wherever_it_is(number: int, around: str) -> None:
    with pytest.raises(OutOfRange, match="more than 64 bits"):
        _check(around.format(number))


@pytest.mark.parametrize("number", [LEAST, -1, 0, MOST])
def test_an_integer_of_64_bits_is_a_number_for_the_server(client: Client, number: int) -> None:
    text = f'{{"a":{number}}}'
    _check(text)
    assert kind_of(client, text) in ("Int64", "UInt64")


@pytest.mark.parametrize("number", [LEAST - 1, MOST + 1])
def test_the_server_makes_a_text_of_an_integer_beyond_64_bits(client: Client, number: int) -> None:
    assert kind_of(client, f'{{"a":{number}}}') == "String"


def kind_of(client: Client, text: str) -> str:
    [row] = client.rows(f"SELECT dynamicType(CAST('{text}' AS JSON).a) AS kind")
    return str(row["kind"])
