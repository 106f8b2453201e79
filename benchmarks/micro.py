"""The steps of a worker, each alone: ``python -m benchmarks micro [--events N] [--repeat N]``.

Decoding is compared with msgspec's typed parse of the same values in the same run: the envelope with its after image
and the position (of a flattened row, its fields and those that the transform adds), whatever follows from them left
out; of Avro, with fastavro's reader of whole values. CPU time of this process; no servers.
"""

import argparse
import gc
import io
import json
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import fastavro
import msgspec
import numpy as np

from benchmarks import merge
from benchmarks.machine import describe
from benchmarks.suite.changes import changes
from benchmarks.suite.formats import encoder
from benchmarks.suite.workloads import WORKLOADS, Workload
from ch_sink.clickhouse.arrow_io import one_batch, to_stream
from ch_sink.decode import Decoder
from ch_sink.model.change import Records
from ch_sink.model.policy import policy_of
from ch_sink.order import State
from ch_sink.pipeline.plan import plan
from ch_sink.pipeline.plans import Ports
from ch_sink.pipeline.target import Target
from ch_sink.ports import RegisteredSchema
from ch_sink.table.model import TargetTable
from ch_sink.types.column import Column
from tests.support.memory_stream import MemoryRegistry

__all__ = ["decoding", "main"]

NAMES = ("json", "json with schema", "avro", "sysbench rows", "wide rows", "flattened", "documents")
_TOGETHER = 4096
_TYPES: dict[str, Any] = {"string": str, "bytes": str, "double": float, "boolean": bool}


def chunk(workload: Workload, count: int) -> Records:
    """Records of one partition."""
    made = encoder(workload.form, workload.rows)
    found = list(made.records(workload.rows, changes(workload.rows, workload.mix, count)))
    offsets = np.arange(len(found), dtype=np.int64)
    return Records("t", 0, offsets, offsets, [one.key for one in found], [one.value for one in found])


def table(workload: Workload) -> TargetTable:
    """The workload's table, as `detect` would find it."""
    rows = workload.table or workload.rows
    own = [Column(f.name, f.clickhouse) for f in rows.fields]
    own += [Column("_version", "UInt128"), Column("_is_deleted", "UInt8")]
    key = rows.key
    return TargetTable("d", "t", merge.ENGINES["replacing"], tuple(own), sorting_key=key, place_columns=frozenset(key))


def parser_of(workload: Workload) -> Callable[[bytes], Any]:
    """A library's own decoder: msgspec's of what is read of the values, as typed Structs; fastavro's of Avro."""
    if workload.form == "avro":
        schemas = encoder(workload.form, workload.rows).schemas
        parsed = {number: fastavro.parse_schema(json.loads(text)) for number, text in schemas.items()}

        def read(value: bytes) -> Any:
            return fastavro.schemaless_reader(io.BytesIO(value[5:]), parsed[int.from_bytes(value[1:5], "big")], None)

        return read
    texts, numbers = ("connector", "name", "snapshot", "file"), ("ts_ms", "pos", "row")
    members = [(f.name, _TYPES.get(f.connect, int) | None, None) for f in workload.rows.fields]
    if workload.form == "flattened":
        kinds = dict.fromkeys(("deleted", "op", "connector", "source_file"), str)
        kinds |= {f"source_{name}": int for name in numbers}
        members += [(f"added_{name}", kind, None) for name, kind in kinds.items()]
        names = {f"added_{name}": f"__{name}" for name in kinds}
        return msgspec.json.Decoder(msgspec.defstruct("Row", members, gc=False, rename=names)).decode
    # A document is a text, whose own parse is left out.
    row: Any = str if workload.form == "documents" else msgspec.defstruct("Row", members, gc=False)
    members = [(name, str | None, None) for name in texts] + [(name, int | None, None) for name in numbers]
    block = msgspec.defstruct("Block", members, gc=False)
    envelope = msgspec.defstruct("Envelope", [("op", str), ("after", row | None), ("source", block)], gc=False)
    if workload.form == "json with schema":
        envelope = msgspec.defstruct("Whole", [("payload", envelope)], gc=False)
    return msgspec.json.Decoder(envelope).decode


def decoding(workload: Workload, records: Records, repeat: int) -> tuple[list[float], list[float]]:
    """Microseconds an event of decoding, and of the library's parse alone; one after the other in each repeat."""
    schemas = encoder(workload.form, workload.rows).schemas
    registry = MemoryRegistry({number: RegisteredSchema("AVRO", text) for number, text in schemas.items()})
    decoder, parse = Decoder(table(workload), policy_of(), registry=registry), parser_of(workload)
    profile = decoder.learn(records)
    decoder.decode(records, profile)
    values = [value for value in records.values if value is not None]

    def parsed() -> None:
        for start in range(0, len(values), _TOGETHER):
            list(map(parse, values[start : start + _TOGETHER]))

    whole, alone = [], []
    for _ in range(repeat):
        whole.append(_cpu(lambda: decoder.decode(records, profile), len(records)))
        alone.append(_cpu(parsed, len(records)))
    return whole, alone


def _cpu(step: Callable[[], object], count: int) -> float:
    """Microseconds of CPU time an event, without garbage collection, as in a worker."""
    gc.disable()
    try:
        began = time.process_time()
        step()
        return (time.process_time() - began) / count * 1e6
    finally:
        gc.enable()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks micro", description=__doc__)
    parser.add_argument("--events", type=int, default=50_000)
    parser.add_argument("--repeat", type=int, default=7)
    given = parser.parse_args(arguments)
    print(*(f"{name}: {value}" for name, value in describe().items()), sep="\n")
    print("command: python -m benchmarks micro", *arguments)
    print("\nµs of CPU time an event, median (lowest to highest); ratio: of the medians")
    for name in NAMES:
        workload = WORKLOADS[name]
        records = chunk(workload, max(int(given.events * workload.share), 1))
        whole, alone = decoding(workload, records, given.repeat)
        ratio = statistics.median(whole) / statistics.median(alone)
        library = "fastavro" if workload.form == "avro" else "msgspec"
        speed = f"{1e6 / statistics.median(whole):10,.0f} events a second of one core"
        print(f"  decode {name:22}{_spread(whole)}   {library} alone {_spread(alone)}   {ratio:.2f} times{speed}")
    workload = WORKLOADS["json"]
    records, target = chunk(workload, given.events), Target.of(table(workload), policy_of())
    batch = merge.Given(Decoder(target.table, policy_of()).decode(records))

    def planned() -> Any:
        return plan(records, target, batch, State(), Ports(None, None))

    [insert] = planned().inserts
    print(f"  order and merge              {_spread([_cpu(planned, given.events) for _ in range(given.repeat)])}")
    for compression in ("none", "lz4", "zstd"):
        kind: Any = compression

        def encoded(kind: Any = kind) -> object:
            return to_stream(one_batch(insert.rows), kind)

        size = len(to_stream(one_batch(insert.rows), kind)) / insert.rows.num_rows
        spread = _spread([_cpu(encoded, given.events) for _ in range(given.repeat)])
        print(f"  encode, {compression:21}{spread}   {size:.0f} bytes a row")
    return 0


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):6.2f} ({min(values):.2f} to {max(values):.2f})"
