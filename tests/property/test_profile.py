"""A chunk's plan is a function of its records and of what the ledger holds: the same in a fresh process, for every cut.

What a decoder has seen before must not change what later bytes mean. Recorded and drawn streams are planned chunk by
chunk in one life, and each chunk again by fresh objects from the stored state."""

import json
import pickle
import random
import subprocess
import sys
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ch_sink.decode import Decoder
from ch_sink.discovery.sample import sample_schema
from ch_sink.errors import ChSinkError
from ch_sink.model.change import Headers, Records
from ch_sink.model.policy import Policy, policy_of
from ch_sink.order import State
from ch_sink.pipeline.plan import plan
from ch_sink.pipeline.plans import Plan, Ports
from ch_sink.pipeline.target import Target
from ch_sink.ports import SchemaRegistry
from ch_sink.table.model import TargetTable
from ch_sink.types.column import Column
from tests.model import History, draw_history
from tests.property.test_flattened import KEYED, KNOBS, POSITIONS, flattened, transformation
from tests.support.cases import cases, drawn
from tests.support.choose import some
from tests.support.decoding import replacing, table_of
from tests.support.document_run import document_table
from tests.support.fixtures import partitions, registry, topics
from tests.support.harness import ENGINES, as_records, target_table
from tests.support.mongodb import draw_collection


@dataclass(frozen=True, slots=True)
class Stream:
    """The records of one partition, and what they go into."""

    records: Records
    table: TargetTable
    policy: Policy
    registry: SchemaRegistry | None = None

    def before(self, offset: int, limit: int) -> Records:
        """Earlier records, as Kafka gives them."""
        end = int(np.searchsorted(self.records.offsets, offset))
        return self.records.slice(max(0, end - limit), end)


class Life:
    """What one process keeps: its decoders."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.target = stream, Target.of(stream.table, stream.policy)
        self.decoders: dict[bool, Decoder] = {}

    def decoder(self, *, before: bool) -> Decoder:
        if before not in self.decoders:
            stream = self.stream
            self.decoders[before] = Decoder(stream.table, stream.policy, want_before=before, registry=stream.registry)
        return self.decoders[before]

    def plan(self, records: Records, state: State) -> Plan:
        """The plan of a chunk."""
        profile = self.decoder(before=False).learn(records, state.profile, self.stream)
        decoder = self.decoder(before=self.target.wants_before(profile.key_columns))
        ports = Ports(history=self.stream)
        return plan(records, self.target, decoder, replace(state, profile=profile), ports)


def differences(stream: Stream, cuts: Sequence[int], *, elsewhere: bool = False) -> list[str]:
    """Chunks whose plan is another one in a fresh life. ``cuts``: places in the records. ``elsewhere``: in a process
    of its own as well."""
    life, state, wrong = Life(stream), State(alone=True), []
    edges = sorted({0, len(stream.records), *(c for c in cuts if c < len(stream.records))})
    tasks: list[tuple[int, int, str]] = []
    made: list[str] = []
    for start, end in pairwise(edges):
        while start < end:
            records, stored = stream.records.slice(start, end), state.to_json()
            mine = _planned(life, records, state)
            again = _planned(Life(stream), records, State.from_json(stored))
            if isinstance(mine, str) or isinstance(again, str):  # the stream stops here, in every life
                return wrong if mine == again else [*wrong, f"chunk {start}-{end}: {mine} and {again}"]
            if shown(mine) != shown(again):
                wrong.append(f"chunk {start}-{end}: {_first_difference(mine, again)}")
            tasks.append((start, end, stored))
            made.append(digest(mine))
            state, start = mine.state, end
            if mine.barrier is not None:
                start = int(np.searchsorted(stream.records.offsets, mine.barrier.next_offset))
                if mine.barrier.kind == "new_columns":
                    return wrong  # the table would be altered here
                state = state.with_floor(mine.barrier.floor, mine.barrier.source)
    if elsewhere and digests_elsewhere(stream, tasks) != made:
        wrong.append("another process plans otherwise")
    return wrong


def _planned(life: Life, records: Records, state: State) -> Plan | str:
    """The plan, or the error that stops the stream."""
    try:
        return life.plan(records, state)
    except ChSinkError as error:
        return f"{type(error).__name__}: {error}"


def shown(made: Plan) -> dict[str, Any]:
    """All of a plan, tables as the bytes that are sent."""
    handover = made.handover
    return {
        "inserts": [(insert.label, _bytes(insert.rows)) for insert in made.inserts],
        "state": made.state.to_json(),
        "pending": made.pending,
        "bad": made.bad,
        "barrier": made.barrier,
        "steps": made.steps,
        "counts": +made.counts,
        "handover": None if handover is None else (list(handover.ids), _bytes(handover.rows), handover.known.tolist()),
        "reconciles": made.reconciles,
        "last_source_ts": made.last_source_ts,
    }


def digest(made: Plan) -> str:
    """The same in short, for another process to compare."""
    return sha256(repr(shown(made)).encode()).hexdigest()


def digests_elsewhere(stream: Stream, tasks: Sequence[tuple[int, int, str]]) -> list[str]:
    """The plans of these chunks (places and stored state), each made by a fresh life in a process of its own."""
    code = "import sys; from tests.property.test_profile import main; main()"
    root = Path(__file__).resolve().parents[2]
    given = pickle.dumps((stream, list(tasks)))
    run = subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, cwd=root, check=True)
    return run.stdout.decode().split()


def main() -> None:
    """The other process."""
    stream, tasks = pickle.loads(sys.stdin.buffer.read())
    for start, end, stored in tasks:
        made = Life(stream).plan(stream.records.slice(start, end), State.from_json(stored))
        sys.stdout.write(f"{digest(made)}\n")


def _bytes(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows.combine_chunks())
    return bytes(sink.getvalue().to_pybytes())


def _first_difference(one: Plan, other: Plan) -> str:
    first, second = shown(one), shown(other)
    name = next((n for n in first if first[n] != second[n]), "")
    if name == "inserts":
        rows = [[(i.label, i.rows.to_pylist()) for i in made.inserts] for made in (one, other)]
        return f"inserts {rows[0]} and {rows[1]}"
    return f"{name} {first.get(name)} and {second.get(name)}"


POLICY = policy_of(truncate="apply", evolve="ignore")
RECORDED = [
    (f"{database}-{encoding}", table)
    for database in ("mariadb", "postgres")
    for encoding in ("json_schema", "json_plain", "avro")
    for table in ("all_types", "kc", "ac", "nopk", "tr", "strkey")
]


def cuts_of(rng: random.Random, count: int) -> list[int]:
    """Every record by itself, or some cuts."""
    return list(range(count)) if rng.random() < 0.2 else rng.sample(range(count), min(count, rng.randint(1, 6)))


def recorded(stream: str, table: str, **choices: Any) -> Iterator[Stream]:
    topic = next((t for t in topics(stream) if t.rpartition(".")[2] == table), None)
    for records in partitions(stream, topic).values() if topic is not None else ():
        # Columns are those of the first records, so that later ones bring unknown columns and lack known ones.
        schema = sample_schema(records, registry=registry(stream))
        if schema is not None:
            policy = replace(POLICY, changes=replace(POLICY.changes, **choices))
            made = table_of(schema)
            if not made.sorting_key:
                system = (Column("_version", "UInt128"), Column("_op", "String"), Column("_sign", "Int8"))
                made = replace(made, engine=ENGINES["append"], columns=(*made.source_columns, *system))
            yield Stream(records, made, policy, registry(stream))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("stream", "table"), some(RECORDED, RECORDED[::2]))
def test_recorded_streams(stream: str, table: str) -> None:
    rng = random.Random(f"{stream}{table}")
    for found in recorded(stream, table):
        for _ in range(2):
            assert differences(found, cuts_of(rng, len(found.records))) == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("stream", [f"{d}-{e}" for d in ("mariadb", "postgres") for e in ("json_schema", "avro")])
def test_up_to_a_new_column(stream: str) -> None:
    """A later attempt cuts the chunk where the first one met the column, and plans the same."""
    cut = 0
    for found in recorded(stream, "ac", evolve="add_columns"):
        old = sample_schema(found.records.slice(0, 1), registry=found.registry)
        assert old is not None
        found = replace(found, table=table_of(old))
        cut += Life(found).plan(found.records, State(alone=True)).barrier is not None
        for place in range(len(found.records)):
            assert differences(found, [place]) == []
    assert cut


def first_partition(history: History) -> Records:
    place, records = max(history.records.items(), key=lambda item: len(item[1]))
    return as_records(history.topic, place, records)


@pytest.mark.long
def test_drawn_envelopes() -> None:
    for case in cases(0, 24):
        history, _ = drawn(case)
        if case.engine.startswith("append"):
            continue
        table = target_table(history.layout, ENGINES["replacing"])
        records = first_partition(history)
        assert differences(Stream(records, table, POLICY), cuts_of(random.Random(case.seed), len(records))) == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mode", ["tombstone", "tombstone headers", "rewrite", "rewrite fields", "none kept"])
def test_drawn_flattened_rows(mode: str) -> None:
    for seed in range(2):
        rng = random.Random(seed)
        connector: Any = rng.choice(sorted(POSITIONS))
        history = draw_history(rng, connector=connector, layout=rng.choice(KEYED), knobs=KNOBS)
        records = first_partition(flattened(history, transformation(mode, connector)))
        table = target_table(history.layout, ENGINES["replacing"])
        if len(records):
            assert differences(Stream(records, table, POLICY), cuts_of(rng, len(records))) == []


def test_drawn_documents() -> None:
    columns = (Column("_id", "String"), Column("document", "String"), Column("v", "Nullable(Int64)"))
    for seed in range(3):
        collection, dialect = draw_collection(seed)
        events = collection.events(dialect)
        keys = [None if e.key is None else json.dumps(e.key).encode() for e in events]
        values = [None if e.value is None else json.dumps(e.value).encode() for e in events]
        stream = Stream(chunk(list(zip(keys, values, strict=True))), document_table(columns), POLICY)
        assert differences(stream, cuts_of(random.Random(seed), len(events))) == []


COLUMNS = (
    Column("id", "Int64"),
    Column("v", "Nullable(String)"),
    Column("price", "Nullable(Decimal(9, 2))"),
    Column("op", "Nullable(String)"),
)
TABLE = replacing(COLUMNS, ("id",))
MYSQL = {"connector": "mysql", "name": "s", "ts_ms": 5, "snapshot": "false", "file": "b.1", "pos": 7, "row": 0}
POSTGRES = {"connector": "postgresql", "name": "s", "ts_ms": 5, "snapshot": "false", "lsn": 7, "sequence": '["5","7"]'}
PRICE = b64encode(b"\x01\x02").decode()
ROWS: list[dict[str, Any]] = [
    {"id": 1, "v": "x", "price": PRICE, "op": "c"},
    {"id": 1, "v": "x", "price": 1.25},
    {"id": 2, "v": None, "price": None, "op": None},
    {"id": 2, "v": "y"},
    {"id": 3, "v": "y", "extra": 1},
    {"id": 3, "v": "y", "extra": "text", "more": [1]},
    {"id": 4, "price": "no base64!"},
    {"id": "four", "v": 5},
    {},
]
SCHEMA = {
    "type": "struct",
    "fields": [
        {"type": "struct", "field": "after", "optional": True, "fields": [{"type": "int64", "field": "id"}]},
        {"type": "string", "field": "op"},
    ],
}


def dumped(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def values() -> list[bytes | None]:
    """Values of every form that one topic may have, sound and broken."""
    found: list[Any] = []
    for row in ROWS:
        found += [{"before": None, "after": row, "source": source, "op": "c"} for source in (MYSQL, POSTGRES)]
        found += [row, row | {"__deleted": "false"}, row | {"__deleted": "true", "__op": "d"}]
        found += [row | {"__lsn": 9, "__source_ts_ms": 3}, row | {"__connector": "mysql", "__file": "b.1", "__pos": 3}]
    found.append({"before": {"id": 1}, "after": None, "source": MYSQL, "op": "d"})
    found += [{"ts_ms": 1}, {"status": "BEGIN", "id": "1", "event_count": None, "data_collections": None}, [1], 7]
    found.append({"after": {"id": 1}, "op": "c"})
    envelopes = [{"schema": SCHEMA, "payload": {"after": {"id": 1}, "source": MYSQL, "op": "c"}}]
    envelopes.append({"schema": SCHEMA, "payload": None})
    texts: list[bytes | None] = [dumped(value) for value in [*found, *envelopes]]
    odd = dumped({"schema": SCHEMA, "payload": 1})[:-1] + b',"other":1}'
    return [*texts, odd, b"null", b"{", b"", b'{"schema":', b"\0\0\0\0\1x", *[None] * 6]


VALUES = values()
KEY_SCHEMA = {"type": "struct", "fields": [{"type": "int64", "field": "id"}]}
KEYS: list[bytes | None] = [
    *[b'{"id":%d}' % i for i in (1, 2, 3)] * 4,
    b"1",
    b'{"id":"5"}',
    dumped({"schema": KEY_SCHEMA, "payload": {"id": 1}}),
    dumped({"schema": KEY_SCHEMA, "payload": {"id": "6"}}),
    b'{"id":1,"v":"x"}',
    b'{"other":1}',
    b"null",
    b"{",
    None,
]
HEADERS: list[Headers | None] = [None, None, None, [("__op", b"c")], [("__lsn", b"9"), ("__sequence", b'["5","9"]')]]


def chunk(pairs: list[tuple[bytes | None, bytes | None]], headers: list[Headers | None] | None = None) -> Records:
    n = len(pairs)
    offsets = np.arange(100, 100 + n, dtype=np.int64)
    return Records("t", 0, offsets, offsets * 10, [k for k, _ in pairs], [v for _, v in pairs], headers)


records_of_all_forms = st.lists(
    st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES), st.sampled_from(HEADERS)), min_size=1, max_size=14
)
policies = st.sampled_from(
    [
        policy_of(truncate="apply", evolve="ignore"),
        policy_of(evolve="ignore", key_columns=("id",)),
        policy_of(evolve="ignore", tombstones="delete"),
        policy_of(evolve="ignore", events="flattened"),
        policy_of(evolve="add_columns"),
    ]
)


def of_all_forms(rows: list[tuple[Any, Any, Any]], policy: Any) -> Stream:
    return Stream(chunk([(k, v) for k, v, _ in rows], [h for _, _, h in rows]), TABLE, policy)


FLAT, MARKED = dumped(ROWS[0]), dumped(ROWS[0] | {"__deleted": "false"})


@settings(max_examples=20, deadline=None)
@example([(b'{"id":1}', FLAT, None), (b'{"id":1}', None, None)], [1], POLICY)
@example([(b'{"id":1}', MARKED, None), (b'{"id":1}', FLAT, None), (b'{"id":1}', None, None)], [1, 2], POLICY)
@given(records_of_all_forms, st.lists(st.integers(1, 13), max_size=5), policies)
def test_records_of_all_forms(rows: list[tuple[Any, Any, Any]], cuts: list[int], policy: Any) -> None:
    assert differences(of_all_forms(rows, policy), cuts) == []


@pytest.mark.long
def test_in_another_process() -> None:
    rng = random.Random(7)
    rows = [(rng.choice(KEYS[:12]), rng.choice(VALUES), rng.choice(HEADERS)) for _ in range(60)]
    assert differences(of_all_forms(rows, POLICY), range(0, 60, 7), elsewhere=True) == []


def test_without_the_profile_a_fresh_process_would_plan_otherwise() -> None:
    """The streams above are such that what was learned matters."""
    stream = of_all_forms([(b'{"id":1}', FLAT, None), (b'{"id":1}', None, None)], POLICY)
    stream = replace(stream, policy=policy_of())
    first = Life(stream).plan(stream.records.slice(0, 1), State(alone=True))
    rest = stream.records.slice(1, 2)
    forgetful = replace(stream, records=rest)  # nor can it look back
    kept = Life(forgetful).plan(rest, State.from_json(first.state.to_json()))
    lost = Life(forgetful).plan(rest, State(alone=True))
    assert shown(kept) != shown(lost)
    assert (kept.counts["deletes"], lost.counts["deletes"]) == (1, 0)
