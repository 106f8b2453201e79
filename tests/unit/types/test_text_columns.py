"""Columns of text that hold values of other types."""

from math import inf, nan

import pytest

from ch_sink.types.build import converter
from ch_sink.types.column import Column, ValuePolicy
from ch_sink.types.connect import SourceType
from ch_sink.types.converter import Encoding


def texts(kind: str, encoding: Encoding, *values: float | str) -> list[str]:
    made = converter(SourceType(kind), Column("v", "String"), encoding=encoding, policy=ValuePolicy())
    return [text.decode() for text in made.convert(list(values)).array.to_pylist()]


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_floats_of_avro_have_the_texts_of_json(kind: str) -> None:
    written = ["NaN", "Infinity", "-Infinity", "3.0", "1e+20"]
    assert texts(kind, "avro", nan, inf, -inf, 3.0, 1e20) == written
    assert texts(kind, "json", "NaN", "Infinity", "-Infinity", 3.0, 1e20) == written


def test_a_float32_has_its_own_digits() -> None:
    assert texts("float32", "avro", 1.100000023841858, 3.4028234663852886e38) == ["1.1", "3.4028235e+38"]
    assert texts("float32", "json", 1.1, 3.4028235e38) == ["1.1", "3.4028235e+38"]
    assert texts("float64", "avro", 1.100000023841858) == ["1.100000023841858"]
