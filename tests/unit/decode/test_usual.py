"""Expected texts of source blocks change speed only: an event means the same whatever the blocks before it said."""

import json

import numpy as np
import pytest

from ch_sink.decode import Decoder
from ch_sink.model.change import ChangeBatch, Records
from ch_sink.model.policy import policy_of
from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.types.column import Column

TABLE = TargetTable(
    "d",
    "t",
    Engine(Family.REPLACING, "ReplacingMergeTree", "_version"),
    (Column("id", "Int64"), Column("_version", "UInt128")),
    sorting_key=("id",),
)


def event(number: int, **source: object) -> bytes:
    block = {"connector": "mysql", "name": "s", "ts_ms": 1, "snapshot": "false", "file": "b.3", "pos": number, "row": 0}
    return json.dumps({"op": "c", "after": {"id": number}, "source": block | source}).encode()


def decoded(decoder: Decoder, values: list[bytes]) -> ChangeBatch:
    offsets = np.arange(len(values), dtype=np.int64)
    keys: list[bytes | None] = [b'{"id":%d}' % i for i in range(len(values))]
    return decoder.decode(Records("t", 0, offsets, offsets, keys, list(values)))


def warm() -> Decoder:
    decoder = Decoder(TABLE, policy_of())
    decoded(decoder, [event(i) for i in range(10)])
    return decoder


OTHERS: list[dict[str, object]] = [
    {"file": "b.4"},
    {"file": None},
    {"name": "other"},
    {"snapshot": "last"},
    {"snapshot": "a mark of the future"},
    {"snapshot": True},
    {"snapshot": None},
]


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_another_text_is_read_as_if_nothing_had_been_expected(other: dict[str, object]) -> None:
    values = [event(0), event(1, **other), event(2)]
    expected, found = decoded(Decoder(TABLE, policy_of()), values), decoded(warm(), values)
    assert found.bad == expected.bad == []
    assert found.after == expected.after
    for name in ("commit", "inner", "has_commit", "source_code", "snapshot", "source_ts"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert found.source_name == expected.source_name


def test_a_name_that_is_null_is_refused_as_before() -> None:
    values = [event(0), event(1, name=None), event(2)]
    expected, found = decoded(Decoder(TABLE, policy_of()), values), decoded(warm(), values)
    assert [bad.index for bad in found.bad] == [1]
    assert found.bad == expected.bad


def test_texts_that_always_differ_are_no_longer_expected() -> None:
    decoder = Decoder(TABLE, policy_of())
    for turn in range(8):
        values = [event(i, name=f"source {turn}") for i in range(3)]
        assert decoded(decoder, values).source_name == [f"source {turn}"]
