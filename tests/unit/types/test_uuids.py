"""Columns of UUIDs with nulls among them."""

import uuid
from typing import Any

import pyarrow as pa
import pytest

from ch_sink.errors import DecodeError
from ch_sink.types.scalars import Uuids


@pytest.mark.parametrize("form", [list, pa.array])
def test_nulls_stay_null_and_the_others_keep_their_text(form: Any) -> None:
    values = [uuid.UUID(int=n << 90 | n) for n in range(20)]
    given = [str(value) if n % 3 else None for n, value in enumerate(values)]
    assert Uuids().convert(form(given)).array.to_pylist() == given
    assert Uuids().convert([]).array.to_pylist() == []
    assert Uuids().convert([None, None]).array.to_pylist() == [None, None]


def test_texts_within_an_array_are_read_as_if_they_were_alone() -> None:
    texts = pa.array([str(uuid.UUID(int=n << 90 | n)).upper() for n in range(5)])
    assert Uuids().convert(texts[2:4]).array.to_pylist() == [text.lower() for text in texts[2:4].to_pylist()]


def test_a_text_that_is_no_uuid_is_refused_beside_nulls() -> None:
    with pytest.raises(DecodeError, match="not a UUID"):
        Uuids().convert([None, "00000000-0000-0000-0000-00000000000g"])


@pytest.mark.parametrize(
    "texts",
    [
        # As long together as canonical ones, with dashes at the same places.
        ("00000000-0000-0000-0000-000000000000abcd", "0000-0000-0000-0000-000000000000"),
        ("00000000-0000-0000-0000-000000000000,00000000-0000-0000-0000-000000000000",),
        ("00000000-0000-0000-0000-00000000000", "000000000-0000-0000-0000-000000000000"),
        ("00000000-0000-0000-0000-00000000000\u00e9",),
    ],
)
def test_texts_that_only_look_like_uuids_together_are_refused(texts: tuple[str, ...]) -> None:
    with pytest.raises(DecodeError, match="not a UUID"):
        Uuids().convert(list(texts))


def test_other_forms_are_read_beside_canonical_ones() -> None:
    value = uuid.UUID(int=0xABCDEF << 90 | 7)
    forms = [str(value), str(value).upper(), value.hex, "{" + str(value) + "}", None]
    assert Uuids().convert(forms).array.to_pylist() == [str(value)] * 4 + [None]
