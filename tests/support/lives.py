"""One stream planned in one life, and each of its chunks planned again from what the ledger holds, in fresh objects."""

import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ch_sink.decode import Decoder
from ch_sink.errors import ChSinkError
from ch_sink.model.change import Records
from ch_sink.model.policy import Policy
from ch_sink.order import State
from ch_sink.pipeline.plan import plan
from ch_sink.pipeline.plans import Plan, Ports
from ch_sink.pipeline.target import Target
from ch_sink.ports import SchemaRegistry
from ch_sink.table.model import TargetTable

__all__ = ["Life", "Stream", "differences", "shown"]


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
    code = "import sys; from tests.support.lives import main; main()"
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
