"""Columns of UUIDs with nulls among them."""

import uuid

import pytest

from ch_sink.errors import DecodeError
from ch_sink.types.scalars import Uuids


def test_nulls_stay_null_and_the_others_keep_their_bytes() -> None:
    values = [uuid.UUID(int=n << 90 | n) for n in range(20)]
    given = [str(value) if n % 3 else None for n, value in enumerate(values)]
    found = Uuids().convert(given).array
    assert found.to_pylist() == [value.bytes if n % 3 else None for n, value in enumerate(values)]
    assert Uuids().convert([None, None]).array.to_pylist() == [None, None]


def test_a_text_that_is_no_uuid_is_refused_beside_nulls() -> None:
    with pytest.raises(DecodeError, match="no UUID"):
        Uuids().convert([None, "00000000-0000-0000-0000-00000000000g"])
