"""Avro groups mean the same with and without the compiled reader, whatever their schema and their bytes."""

import ctypes
import random

import pytest

from ch_sink.decode.avro import definition
from tests.support.avro_fuzz import scanned_and_stepped
from tests.support.scan_fuzz import differences, recorded_avro


def test_datums_of_drawn_schemas_are_the_same(library: ctypes.CDLL) -> None:
    taken = [0, 0]
    for seed in range(600):
        found, took = scanned_and_stepped(random.Random(seed), library)
        assert not found, seed
        taken[took] += 1
    assert min(taken) > 100  # both what it takes and what it leaves


def test_a_few_recorded_groups_are_the_same(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    read = [0, 0]
    whole = definition.scan

    def counted(*given: object, **more: object) -> object:
        found = whole(*given, **more)  # type: ignore[arg-type]
        read[found is not None] += 1
        return found

    monkeypatch.setattr(definition, "scan", counted)
    for seed in range(12):
        assert not differences(recorded_avro(seed), library), seed
    assert all(read)


@pytest.mark.long
def test_datums_of_many_drawn_schemas_are_the_same(library: ctypes.CDLL) -> None:
    first = random.randrange(1 << 40)
    print(f"seeds from {first} on")  # noqa: T201
    for seed in range(first, first + 100_000):
        assert not scanned_and_stepped(random.Random(seed), library)[0], seed


@pytest.mark.long
def test_many_recorded_groups_are_the_same(library: ctypes.CDLL) -> None:
    first = random.randrange(1 << 40)
    print(f"seeds from {first} on")  # noqa: T201
    for seed in range(first, first + 2000):
        assert not differences(recorded_avro(seed), library), seed
