"""A record that cannot be decoded costs its own group of records further passes, and the rest of the stream nothing."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from ch_sink.decode import Decoder, decoder_for
from ch_sink.discovery.sample import sample_schema
from ch_sink.model.change import Records
from ch_sink.model.policy import policy_of
from ch_sink.types.column import Column
from tests.support.decoding import replacing, table_of
from tests.support.event import event, row
from tests.support.fixtures import partitions, registry, topics

CHUNK, CHUNKS, POISONED = 1_000, 5, 2
TABLE = replacing((Column("id", "Int64"), Column("v", "Nullable(String)"), Column("n", "Nullable(Int8)")), ("id",))
STREAM = "postgres-avro"


class Passes:
    """Counts how often each record is decoded."""

    def __init__(self, decoder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records = 0
        self.calls = 0
        attempt = decoder._attempt

        def counting(records: Records, index: Sequence[int], *rest: Any) -> Any:
            self.records += len(index)
            self.calls += 1
            return attempt(records, index, *rest)

        monkeypatch.setattr(decoder, "_attempt", counting)

    def taken(self) -> tuple[int, int]:
        found, self.calls, self.records = (self.calls, self.records), 0, 0
        return found


def chunked(values: Sequence[bytes | None], keys: Sequence[bytes | None]) -> list[Records]:
    return [
        Records("t", 0, np.arange(at, at + CHUNK), np.zeros(CHUNK, np.int64), list(keys[at : at + CHUNK]),
                list(values[at : at + CHUNK]))
        for at in range(0, CHUNK * CHUNKS, CHUNK)
    ]  # fmt: skip


def as_json(number: int) -> bytes:
    return event("c", row(number) | {"n": number % 100})


POISON: dict[str, Callable[[bytes], bytes]] = {
    "no JSON": lambda _: b"{",
    "cut off": lambda value: value[:-9],
    "another shape": lambda _: b'{"after": [1, 2], "op": "c", "source": 3}',
    "does not fit": lambda value: value.replace(b'"n": ', b'"n": 77777'),
    "no text": lambda value: value.replace(b'"x"', b'"\xff\xfe"'),
    "no operation": lambda value: value.replace(b'"op": "c"', b'"op": "?"'),
}


def expect_one_slow_chunk(taken: list[tuple[int, int]], usual: int) -> None:
    slow = taken.pop(POISONED)
    assert set(taken) == {(usual, CHUNK)}
    calls, records = slow
    assert usual < calls <= usual + 2 * CHUNK.bit_length() + 1
    assert records <= 4 * CHUNK


@pytest.mark.sampled(2)
@pytest.mark.parametrize("poison", POISON)
def test_json(poison: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values: list[bytes | None] = [as_json(n) for n in range(CHUNK * CHUNKS)]
    place = POISONED * CHUNK + 700
    values[place] = POISON[poison](values[place] or b"")
    keys = [b'{"id": %d}' % n for n in range(CHUNK * CHUNKS)]
    decoder = Decoder(TABLE, policy_of())
    passes = Passes(decoder, monkeypatch)
    taken = []
    for n, records in enumerate(chunked(values, keys)):
        profile = decoder.learn(records)
        passes.taken()
        batch = decoder.decode(records, profile)
        assert [b.index for b in batch.bad] == ([700] if n == POISONED else [])
        assert len(batch) == CHUNK - (n == POISONED)
        taken.append(passes.taken())
    expect_one_slow_chunk(taken, taken[0][0])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("poison", ["cut off", "too long", "text of no UTF-8", "unknown schema"])
def test_avro(poison: str, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = next(t for t in topics(STREAM) if t.endswith(".kc"))
    recorded = next(iter(partitions(STREAM, topic).values()))
    schema = sample_schema(recorded, registry=registry(STREAM))
    assert schema is not None
    sound = next(i for i, v in enumerate(recorded.values) if v is not None)
    value, key = recorded.values[sound], recorded.keys[sound]
    assert value is not None
    values: list[bytes | None] = [value] * (CHUNK * CHUNKS)
    values[POISONED * CHUNK + 700] = {
        "cut off": value[:-3],
        "too long": value + b"\x00\x01",
        "text of no UTF-8": value.replace(b"postgres", b"\xff\xfe\xff\xfe\xff\xfe\xff\xfe"),
        "unknown schema": value[:1] + b"\x7f\xff\xff\xff" + value[5:],
    }[poison]
    decoder: Any = decoder_for(
        table_of(schema), policy_of(), want_before=False, format="avro", registry=registry(STREAM)
    )
    passes = Passes(decoder, monkeypatch)
    taken = []
    for n, records in enumerate(chunked(values, [key] * (CHUNK * CHUNKS))):
        profile = decoder.learn(records)
        passes.taken()
        batch = decoder.decode(records, profile)
        assert [b.index for b in batch.bad] == ([700] if n == POISONED else [])
        taken.append(passes.taken())
    expect_one_slow_chunk(taken, taken[0][0])
