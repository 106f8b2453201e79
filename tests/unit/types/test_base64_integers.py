"""Base64 of integers, all at once, against Python's own functions one by one."""

import base64
import binascii

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ch_sink.types.decimals import integers


def one(text: str | None) -> int:
    return 0 if text is None else int.from_bytes(binascii.a2b_base64(text, strict_mode=True), "big", signed=True)


@given(st.lists(st.one_of(st.none(), st.binary(max_size=8)), max_size=30))
def test_all_integers_of_eight_bytes(values: list[bytes | None]) -> None:
    texts = [None if value is None else base64.b64encode(value).decode() for value in values]
    found = integers(pa.array(texts, pa.string()))
    if not texts:
        assert found is None
        return
    assert found is not None
    assert found.tolist() == [one(text) for text in texts]


@given(st.lists(st.text("AQgw/+=-_ é\n", max_size=13), min_size=1, max_size=3))
def test_what_is_no_base64_is_left_to_others(texts: list[str]) -> None:
    found = integers(pa.array(texts, pa.string()))
    if found is not None:
        assert found.tolist() == [one(text) for text in texts]


@pytest.mark.parametrize("text", ["A===", "=AAA", "AA=A", "AAA", "AAAA=", "AAAAAAAAAAAA", "AAAAAAAAAAAAAAAA", "AA-A"])
def test_broken_and_long_texts_are_refused(text: str) -> None:
    assert integers(pa.array(["AAAA", text], pa.string())) is None
