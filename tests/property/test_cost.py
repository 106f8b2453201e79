"""No value of up to a megabyte takes more than two seconds or 256 MiB, whatever its schema and its bytes are.

The drawn test of what `tests/unit/decode/test_cost.py` holds case by case. Seconds are of the process's own time, so
that a busy machine changes little.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import pytest

from ch_sink.decode import decoder_for
from ch_sink.errors import ChSinkError
from ch_sink.memory import MemoryHandover
from ch_sink.model.policy import policy_of
from ch_sink.order import State
from ch_sink.pipeline.plan import plan
from ch_sink.pipeline.plans import BatchDecoder, Ports
from ch_sink.pipeline.target import Target
from ch_sink.ports import RegisteredSchema
from ch_sink.table.model import TargetTable
from ch_sink.types.column import Column
from tests.support import hostile, hostile_avro
from tests.support.decoding import replacing
from tests.support.event import event, records
from tests.support.fixtures import partitions, topics
from tests.support.hostile_avro import Cost, costing
from tests.support.memory_stream import MemoryRegistry
from tests.support.memory_table import MemoryTable

SECONDS, MIB = 2.0, 256.0
LARGEST = 1_100_000
"""Bytes of a value with its schema, beyond which the limits say nothing."""
POLICY = policy_of(evolve="add_columns", truncate="ignore", on_unresolved="null")
ROWS = replacing(hostile.COLUMNS, ("id",))
TEXTS = replacing((Column("id", "Int64"), *(Column(c.name, "Nullable(String)") for c in hostile.COLUMNS[1:])), ("id",))
DOCUMENTS = replacing(
    (Column("_id", "Int64"), Column("document", "String"), Column("f0", "Nullable(String)")), ("_id",)
)
_FIELDS = ("Int64", "Decimal(38, 9)", "JSON")
FIELDS = replacing(
    (Column("_id", "Int64"), *(Column(f"f{i}", f"Nullable({kind})") for i, kind in enumerate(_FIELDS))), ("_id",)
)
AVRO_ID = 7
KINDS = ("plain", "declared", "documents", "avro", "bare", "mutated")


@cache
def recorded() -> list[bytes]:
    """Some values of each recorded topic."""
    found: list[bytes] = []
    for stream in (
        "mariadb-json_plain",
        "mariadb-json_schema-wide",
        "postgres-json_schema-wide",
        "postgres-json_plain",
    ):
        for topic in topics(stream):
            for part in partitions(stream, topic).values():
                found += [value for value in part.values[::17] if value is not None]
    return found


def draw(number: int) -> tuple[str, str, TargetTable, bytes]:
    """The kind, the Avro schema, the table and the value of a draw."""
    rng = random.Random(number)
    kind, schema, table = KINDS[number % len(KINDS)], "", rng.choice((ROWS, TEXTS))
    if kind == "plain":
        value = hostile.plain(rng)
    elif kind == "declared":
        value = hostile.declared(rng)
    elif kind == "documents":
        value, table = hostile.documents(rng), rng.choice((DOCUMENTS, FIELDS))
    elif kind == "avro":
        table = TEXTS if rng.random() < 0.6 else table
        schema, datum = hostile_avro.avro(rng)
        value = b"\0" + AVRO_ID.to_bytes(4, "big") + datum
    elif kind == "bare":
        value = hostile.bare(rng)
    else:
        value = hostile.mutated(rng, rng.choice(recorded()))
    return kind, schema, table, value


def taken(number: int) -> tuple[str, int, Cost, str]:
    """The kind and size of a draw, what it costs, and what becomes of the record."""
    kind, schema, table, value = draw(number)
    registry = MemoryRegistry({AVRO_ID: RegisteredSchema("AVRO", schema)})
    decoder: BatchDecoder = decoder_for(table, POLICY, want_before=True, format="auto", registry=registry)
    target, ports = Target.of(table, POLICY), Ports(MemoryTable(table, ("id",)), MemoryHandover(), None)
    sound = event("c", {"id": 1})
    given = records((1, sound), (2, value), (3, sound)) if kind not in ("documents", "avro") else records((2, value))
    became = "refused"

    def apply() -> None:
        nonlocal became
        try:
            made = plan(given, target, decoder, State(), ports)
            found = next((b for b in made.bad if len(given) == 1 or b.index == 1), None)
            became = "event" if found is None else found.kind
        except ChSinkError as error:  # a topic's key, a column that cannot be: of the table, not of a record
            became = type(error).__name__

    return kind, len(value) + len(schema), costing(apply), became


@dataclass
class Tally:
    """What became of draws."""

    became: Counter[str] = field(default_factory=Counter)
    dear: list[str] = field(default_factory=list)
    """Draws that cost too much, or were refused by accident."""
    dearest: tuple[float, str] = (0.0, "")

    def add(self, number: int) -> None:
        kind, size, cost, what = taken(number)
        self.became[f"{kind} {what}"] += 1
        text = f"draw {number} ({kind}, {size} bytes, {what}): {cost.seconds:.2f} s, {cost.mib:.0f} MiB"
        self.dearest = max(self.dearest, (cost.seconds / SECONDS + cost.mib / MIB, text))
        if what == "unexpected" or (size <= LARGEST and (cost.seconds > SECONDS or cost.mib > MIB)):
            self.dear.append(text)


@pytest.mark.long
def test_some_hundred_draws_are_cheap() -> None:
    tally = Tally()
    for number in range(48):
        tally.add(number)
    assert not tally.dear
    assert sum(n for what, n in tally.became.items() if what.endswith("event")) > 8
    assert sum(n for what, n in tally.became.items() if what.endswith("decode")) > 20


@pytest.mark.long
def test_a_hundred_thousand_draws_are_cheap(record_property: Callable[[str, object], None]) -> None:
    """``COST_DRAWS``: how many, from number ``COST_FIRST`` on, for ``COST_SECONDS`` at most."""
    first, count = int(os.environ.get("COST_FIRST", "1000")), int(os.environ.get("COST_DRAWS", "100000"))
    until = time.monotonic() + float(os.environ.get("COST_SECONDS", "14000"))
    tally = Tally()
    for number in range(first, first + count):
        tally.add(number)
        if time.monotonic() > until:
            break
    record_property("figures", f"{sum(tally.became.values())} draws, {dict(tally.became)}; dearest: {tally.dearest[1]}")
    assert not tally.dear
