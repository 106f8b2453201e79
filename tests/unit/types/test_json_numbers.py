"""Numbers in JSON columns, held against the engine: a number stays one, or its record is refused."""

import pytest

from ch_sink.clickhouse import Client
from ch_sink.types import OutOfRange
from ch_sink.types.text_columns import _check

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
