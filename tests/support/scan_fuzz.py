"""Groups of records for the compiled scanner: drawn tables of all types, and recorded streams with faults.

``python -m tests.support.scan_fuzz LIBRARY SEED SECONDS`` decodes drawn groups with that library until the time is up.
"""

import ctypes
import random
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from ch_sink.decode import Decoder, framing, key_layouts
from ch_sink.decode.avro import definition
from ch_sink.decode.json import flat_layout, scanned
from ch_sink.decode.mongodb import columns as document_columns
from ch_sink.decode.mongodb import events as document_events
from ch_sink.decode.native.library import _FUNCTIONS
from ch_sink.discovery.sample import sample_schema
from ch_sink.errors import ChSinkError
from ch_sink.model.change import ChangeBatch, Records, Updates
from ch_sink.model.policy import Policy, policy_of
from ch_sink.ports import SchemaRegistry
from ch_sink.table.model import TargetTable
from ch_sink.types.column import Column
from ch_sink.types.connect import parse_connect_schema
from tests.support.avro_fuzz import scanned_and_stepped
from tests.support.decoding import bits, replacing, table_of
from tests.support.fixtures import partitions, registry, topics
from tests.support.scan_records import MORE, Writer, changed
from tests.unit.types.type_cases import CASES

USERS: tuple[Any, ...] = (
    scanned,
    flat_layout,
    definition,
    key_layouts,
    framing,
    document_events,
    document_columns,
)
STREAMS = ("mariadb-json_plain", "postgres-json_plain", "mariadb-json_schema", "postgres-json_schema-wide")
AVRO_STREAMS = ("mariadb-avro", "postgres-avro")
NAMES = ("a", "b_c", "é", 'q"t', "b\\s", "x y", "🦀", "op", "after", "source", "sixteen_letters_", "before", "__op")


def shown(batch: ChangeBatch) -> str:
    """Everything that a batch says."""

    def one(value: Any) -> Any:
        if isinstance(value, pa.Table):
            plain = bits(value)  # Arrow's own times end after a day, a column's do not
            plain.validate(full=True)
            return value.schema.to_string(), plain.to_pylist()
        if isinstance(value, np.ndarray):
            return value.dtype, value.tolist()
        if isinstance(value, Updates):  # its functions are not compared
            return value.base, sorted(value.changes), sorted(value.otherwise)
        return {name: one(part) for name, part in value.items()} if isinstance(value, dict) else value

    return "\n".join(f"{field.name}: {one(getattr(batch, field.name))!r}" for field in fields(batch))


@contextmanager
def with_scanner(native: Any) -> Iterator[None]:
    """Decoding by this library, for groups of any size; without one if it is None."""
    kept = [(user, user.library) for user in USERS], scanned.FEWEST, scanned._PATIENCE
    for user in USERS:
        user.library = lambda: native
    scanned.FEWEST, scanned._PATIENCE = 1, 1 << 60
    try:
        yield
    finally:
        for user, was in kept[0]:
            user.library = was
        scanned.FEWEST, scanned._PATIENCE = kept[1:]


def decoded(decoder: Decoder, records: Records) -> tuple[str, ChangeBatch | None]:
    """What is said of the records, be it an error, and their batch."""
    try:
        batch = decoder.decode(records, decoder.learn(records))
    except ChSinkError as error:
        return f"{type(error).__name__}: {error}", None
    return shown(batch), batch


def records_of(keys: list[bytes | None], values: list[bytes | None]) -> Records:
    """Records of one partition."""
    offsets = np.arange(len(values), dtype=np.int64) * 3 + 10
    return Records("t", 0, offsets, offsets, keys, values)


@dataclass
class Group:
    """A table with a policy, and groups of records that one decoder gets one after the other."""

    table: TargetTable
    policy: Policy
    before: bool
    groups: list[Records]
    registry: SchemaRegistry | None = None


def drawn(seed: object) -> Group:
    """A drawn table and groups of its records."""
    rnd = random.Random(str(seed))
    every = [case for cases in CASES.values() for case in cases if case.values] + MORE
    names = rnd.sample(NAMES, rnd.randrange(1, 6))
    cases = {name: rnd.choice(every) for name in names}
    columns = [Column("id", "Int64", comment=rnd.choice(("", "debezium: int64")))]
    for name, case in cases.items():
        kind, schema = case.column, case.schema
        if rnd.random() < 0.3 and (found := re.fullmatch(r"Nullable\((?!Tuple)(.*)\)", kind)):
            kind, schema = found[1], schema | {"optional": rnd.random() < 0.5}
        declared = parse_connect_schema(schema).to_comment() if rnd.random() < 0.7 else ""
        columns.append(Column(name, kind, comment=declared))
        cases[name] = replace(case, schema=schema)
    key = ("id",) if rnd.random() < 0.7 else ("id", names[0])
    policy = policy_of(
        out_of_range=rnd.choice(("fail", "clamp", "null")),
        binary_handling=rnd.choice(("bytes", "bytes", "base64", "base64-url-safe", "hex")),
        decimal_handling=rnd.choice(("precise", "precise", "double", "string")),
        time_precision=rnd.choice(("adaptive", "connect", "isostring", "microseconds", "nanoseconds")),
    )
    writer = Writer(rnd, cases, key)
    groups = [records_of(*writer.records()) for _ in range(rnd.randrange(1, 5))]
    return Group(replacing(tuple(columns), key), policy, rnd.random() < 0.6, groups)


@cache
def _topics(stream: str) -> list[tuple[TargetTable, Records]]:
    every = [records for topic in topics(stream) for records in partitions(stream, topic).values() if len(records) > 1]
    schemas = [(sample_schema(records, registry=registry(stream)), records) for records in every]
    return [(table_of(schema), records) for schema, records in schemas if schema is not None]


def recorded(seed: object, streams: Sequence[str] = STREAMS) -> Group:
    """A recorded table and groups of its records, in another order and some with a fault."""
    rnd = random.Random(str(seed))
    stream = rnd.choice(streams)
    table, records = rnd.choice(_topics(stream))
    groups = []
    for _ in range(rnd.randrange(1, 4)):
        places = [rnd.randrange(len(records)) for _ in range(rnd.choice((1, 2, 3, 20, 63, 64)))]
        keys, values = [records.keys[i] for i in places], [records.values[i] for i in places]
        for chosen, share in ((values, 0.7), (keys, 0.2)):
            at = rnd.randrange(len(places))
            if rnd.random() < share and chosen[at]:
                chosen[at] = changed(chosen[at] or b"", rnd)
        groups.append(records_of(keys, values))
    policy = policy_of(out_of_range=rnd.choice(("fail", "clamp", "null")))
    return Group(table, policy, rnd.random() < 0.5, groups, registry(stream))


def recorded_avro(seed: object) -> Group:
    """The same in Avro."""
    return recorded(seed, AVRO_STREAMS)


def differences(given: Group, native: ctypes.CDLL | None) -> list[str]:
    """What is decoded otherwise by this library, and what changes after it was decoded."""
    found: list[str] = []
    held: list[tuple[str, ChangeBatch | None]] = []
    ways = (native, None)
    decoders = []
    for way in ways:
        with with_scanner(way):
            try:
                decoders.append(Decoder(given.table, given.policy, want_before=given.before, registry=given.registry))
            except ChSinkError:
                return []
    for records in given.groups:
        texts = []
        for decoder, way in zip(decoders, ways, strict=True):
            with with_scanner(way):
                text, batch = decoded(decoder, records)
            texts.append(text)
            held.append((text, batch))
        if texts[0] != texts[1]:
            found.append(f"{given.table.columns}\n{given.policy}\n{records.keys}\n{records.values}\n{_apart(*texts)}")
    found += ["a batch is another one later" for text, batch in held if batch is not None and shown(batch) != text]
    return found


def _apart(one: str, other: str) -> str:
    lines = zip(one.split("\n"), other.split("\n"), strict=False)
    return "\n".join(f"scanned {a}\nwithout {b}" for a, b in lines if a != b)


def fuzz(
    path: str,
    seed: int,
    seconds: float,
    ways: Sequence[Callable[[object], Group]],
    texts: Callable[[object, ctypes.CDLL], tuple[list[str], int]] | None = None,
) -> None:
    """Decode drawn groups, and compare ``texts``, with the library in this file until the time is up."""
    native = ctypes.CDLL(path)
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(native, name)
        function.restype, function.argtypes = result, arguments
    end, turns = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        turns += 1
        for found in differences(ways[turns % len(ways)](seed + turns), native):
            sys.exit(f"seed {seed + turns}: {found}")
        if texts is not None and (wrong := texts(seed + turns, native)[0]):
            sys.exit(f"seed {seed + turns}: {wrong}")
    sys.stdout.write(f"{turns} groups\n")


if __name__ == "__main__":
    fuzz(
        sys.argv[1],
        int(sys.argv[2]),
        float(sys.argv[3]),
        (drawn, recorded, recorded_avro),
        lambda seed, native: scanned_and_stepped(random.Random(str(seed)), native),
    )
