"""Whatever a record's bytes are: it is applied, skipped as a known kind, or a dead letter, and nothing grows.

A record may also stop the stream with an error that names it, where it says that the source's schema is another one.
"""

import random
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ch_sink.decode import decoder_for
from ch_sink.discovery.sample import sample_schema
from ch_sink.errors import ChSinkError
from ch_sink.memory import MemoryHandover
from ch_sink.model.change import Headers, Records
from ch_sink.model.policy import policy_of
from ch_sink.order import State
from ch_sink.pipeline.plan import plan
from ch_sink.pipeline.plans import BatchDecoder, Ports
from ch_sink.pipeline.target import Target
from ch_sink.types.arrow import arrow_type
from tests.support.decoding import table_of
from tests.support.fixtures import partitions, registry, topics
from tests.support.memory_table import MemoryTable

STREAMS = (
    "mariadb-json_plain", "mariadb-json_schema-wide", "postgres-json_schema-wide", "postgres-json_plain",
    "mariadb-avro", "postgres-avro",
)  # fmt: skip
POLICY = policy_of(evolve="ignore", truncate="ignore", on_unresolved="null")
CHUNK = 250
ODD = (
    b"null", b"-0", b"1e400", b"NaN", b"99999999999999999999999999999999999999999", b'"\\ud800"', b"{}", b"[[[[[[[[",
    b'{"a":' * 60, b"\x00", b"\xff\xfe", b'"', b"true", b"\xf0\x9f\x98\x80", b"-9223372036854775809", b'"2024-02-30"',
)  # fmt: skip
NAMES = ("__debezium.newkey", "__debezium.oldkey", "__op", "__deleted", "x", "", "\x00")


@dataclass
class Source:
    """One partition of a recorded topic, with the table that its sample asks for."""

    name: str
    records: Records
    target: Target
    decoder: BatchDecoder
    ports: Ports


@dataclass
class Tally:
    """What became of the records."""

    mutated: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0


def sources() -> list[Source]:
    found: list[Source] = []
    for stream in STREAMS:
        for topic in topics(stream):
            for records in partitions(stream, topic).values():
                schema = sample_schema(records, registry=registry(stream)) if len(records) > 3 else None
                if schema is None or not schema.key or not all(f.name for f in schema.key):
                    continue
                target = Target.of(table_of(schema), POLICY)
                own = {c.name: arrow_type(c.type) for c in target.table.columns}
                keys = tuple(f.name for f in schema.key)
                table = MemoryTable(target.table, keys, pa.schema(list(own.items())))
                decoder = decoder_for(target.table, POLICY, want_before=True, format="auto", registry=registry(stream))
                ports = Ports(lookup=table, handover=MemoryHandover(), history=None)
                found.append(Source(f"{stream} {topic}", records, target, decoder, ports))
    return found


def mutate(data: bytes | None, others: list[bytes | None], rng: random.Random) -> bytes | None:
    """The bytes with one to three faults."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        how = rng.randrange(10)
        if data is None or not data:
            data = rng.choice(ODD)
            continue
        at = rng.randrange(len(data))
        match how:
            case 0:
                data = data[:at]
            case 1:
                data = data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
            case 2:
                data = data[:at] + rng.randbytes(rng.randint(1, 4)) + data[at:]
            case 3:
                data = data[:at] + data[at + rng.randint(1, 40) :]
            case 4:
                data = data + rng.randbytes(rng.randint(1, 4))
            case 5:
                data = data[:at] + rng.choice(ODD) + data[at + rng.randint(0, 6) :]
            case 6:  # a token of JSON, a number or a text, becomes something else
                tokens = [i for i, c in enumerate(data) if c in b":,"][:400]
                if tokens:
                    start = rng.choice(tokens) + 1
                    end = min((e for e in (data.find(b",", start), data.find(b"}", start)) if e > 0), default=start)
                    data = data[:start] + rng.choice(ODD) + data[end:]
            case 7:  # the front of this one and the rest of another
                other = rng.choice(others) or b""
                data = data[:at] + other[at:]
            case 8:
                data = rng.choice((None, b"", data * 2, rng.randbytes(rng.randint(1, 60))))
            case _:  # an Avro schema id, or the first bytes of JSON
                data = data[:1] + rng.randbytes(4) + data[5:]
    return data


def chunk(source: Source, rng: random.Random, tally: Tally) -> Records:
    n = len(source.records)
    picked = [rng.randrange(n) for _ in range(CHUNK)]
    keys = [source.records.keys[i] for i in picked]
    values = [source.records.values[i] for i in picked]
    headers: list[Headers | None] = [None] * CHUNK
    for place in range(CHUNK):
        if rng.random() < 0.2:  # neighbours that are sound
            continue
        tally.mutated += 1
        what = rng.random()
        if what < 0.75:
            values[place] = mutate(values[place], source.records.values, rng)
        if what > 0.65:
            keys[place] = mutate(keys[place], source.records.keys, rng)
        if what > 0.9:
            headers[place] = [(rng.choice(NAMES), mutate(keys[place], keys, rng)) for _ in range(rng.randint(1, 3))]
    offsets = np.arange(CHUNK, dtype=np.int64)
    return Records("t", 0, offsets, np.zeros(CHUNK, np.int64), keys, values, headers)


def whole(source: Source, records: Records, tally: Tally) -> None:
    """Every record is accounted for, and the plan holds."""
    decoded = source.decoder.decode(records, source.decoder.learn(records, State().profile, None))
    bad = {b.index for b in decoded.bad}
    events = set(decoded.source_index.tolist())
    skipped = {place for places in decoded.skipped.values() for place in places}
    assert bad | events | skipped == set(range(len(records))), source.name
    assert not bad & events
    made = plan(records, source.target, source.decoder, State(alone=True), source.ports)
    later = {b.index for b in made.bad}
    assert later >= bad
    tally.kinds["events"] += len(events - later)
    tally.kinds["dead letters"] += len(later)
    tally.kinds["skipped"] += len(skipped - later)


def swallow(source: Source, records: Records, tally: Tally) -> None:
    """As `whole`; where a record stops the stream, the others go on without it."""
    began = time.monotonic()
    todo = [records]
    while todo:
        some = todo.pop()
        try:
            whole(source, some, tally)
        except ChSinkError as error:
            if len(some) == 1:
                tally.kinds[f"stopped: {type(error).__name__}"] += 1
                continue
            half = len(some) // 2
            todo += [some.take(list(range(half))), some.take(list(range(half, len(some))))]
    tally.slowest = max(tally.slowest, time.monotonic() - began)


def run(count: int, seed: int) -> Iterator[Tally]:
    """Mutates so many records, and yields the tally now and then."""
    rng, known, tally = random.Random(seed), sources(), Tally()
    assert len(known) > 20
    number = 0
    while tally.mutated < count:
        source = known[number % len(known)]
        number += 1
        try:
            swallow(source, chunk(source, rng, tally), tally)
        except Exception as error:
            raise AssertionError(f"seed {seed}, chunk {number} of {source.name}: {error!r}") from error
        if number % 40 == 0:
            yield tally
    yield tally


def test_a_few_thousand_mutated_records() -> None:
    *_, tally = run(500, 1)
    assert tally.kinds["events"] > 80
    assert tally.kinds["dead letters"] > 330
    stopped = sum(n for kind, n in tally.kinds.items() if kind.startswith("stopped"))
    assert stopped < tally.mutated / 20, tally.kinds


@pytest.mark.long
def test_a_million_mutated_records_in_flat_memory(record_property: Callable[[str, object], None]) -> None:
    page = resource.getpagesize() >> 10
    used: list[tuple[int, float]] = []
    for tally in run(1_000_000, int(time.time())):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        used.append((tally.mutated, pages * page / 1024))
    # A decoder keeps the layouts of 256 schemas. Where values carry their schema, each mutated one is another one: the
    # cache of a wide table is full after 4,000 such records, with some 20 MiB, and each source here has its own.
    early = max(mib for n, mib in used if 400_000 < n < 500_000)
    late = max(mib for n, mib in used if n > 900_000)
    record_property(
        "figures", f"{dict(tally.kinds)}, slowest chunk {tally.slowest:.2f} s, {early:.0f} to {late:.0f} MiB"
    )
    assert late < early * 1.1
