"""Decoding recorded streams in tests: the table that a sample asks for, and the source's texts as Python values."""

import datetime
import re
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa

from ch_sink.model.change import ChangeBatch
from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.types import clickhouse_type
from ch_sink.types.column import Column
from ch_sink.types.connect import RowSchema

EPOCH = datetime.datetime(1970, 1, 1)


def table_of(schema: RowSchema, name: str = "t") -> TargetTable:
    """A replacing table with a column for each field of the schema, as ``init`` would type it."""
    keys = {f.name for f in schema.key}
    columns = tuple(
        Column(f.name, clickhouse_type(f.type, key=f.name in keys), comment=f.type.to_comment()) for f in schema.fields
    )
    return replacing(columns, tuple(f.name for f in schema.key), name)


def replacing(columns: tuple[Column, ...], key: tuple[str, ...], name: str = "t") -> TargetTable:
    """A ``ReplacingMergeTree(_version, _is_deleted)`` table of these source columns."""
    engine = Engine(Family.REPLACING, "ReplacingMergeTree", "_version", None, "_is_deleted")
    system = (Column("_version", "UInt128"), Column("_is_deleted", "UInt8"))
    return TargetTable("d", name, engine, columns + system, key)


def truth_value(text: str | None, source_type: str, column_type: str) -> Any:
    """A cell of the truth file as the Python value that Arrow gives for the column."""
    if text is None:
        return None
    kind = source_type.lower()
    if kind.endswith("[]"):
        return {
            "items": [
                truth_value(t, kind[:-2], re.sub(r".*Array\((.*)\)\)\)", r"\1", column_type)) for t in _array(text)
            ]
        }
    if "String" in column_type:
        return _text(text, kind)
    if "Decimal" in column_type:
        return Decimal(text.replace("$", "").replace(",", ""))
    if kind.startswith("time") and column_type.endswith(("Int64)", "Int32)")):
        return _clock(text) // (1000 if "Int32" in column_type else 1)
    if kind.startswith(("bit", "varbit")):
        return bool(int(text)) if "Bool" in column_type else int(text or "0", 2)
    if "Bool" in column_type:
        return text == "true"
    if "DateTime64" in column_type:
        return _moment(text)
    if "Date32" in column_type:
        return datetime.date.fromisoformat(text)
    if "UUID" in column_type:
        return text
    if "Point" in column_type:
        numbers = re.findall(r"-?[\d.]+", text)
        return {"1": float(numbers[0]), "2": float(numbers[1])}
    if "Float32" in column_type:
        return struct.unpack("f", struct.pack("f", float(text)))[0]
    if "Float" in column_type:
        return "NaN" if text == "NaN" else float(text)
    return int(text)


def _text(text: str, kind: str) -> bytes | Decimal:
    if kind.startswith(("binary", "varbinary", "blob")):
        return bytes.fromhex(text)
    if kind == "bytea":
        return bytes.fromhex(text.removeprefix("\\x"))
    if kind == "numeric":
        return Decimal(text)
    return text.encode()


def _moment(text: str) -> datetime.datetime:
    found = datetime.datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)


def _clock(text: str) -> int:
    """Microseconds of ``-838:59:59.5``."""
    hours, minutes, seconds = text.lstrip("-").split(":")
    total = (int(hours) * 3600 + int(minutes) * 60) * 1_000_000 + int(Decimal(seconds) * 1_000_000)
    return -total if text.startswith("-") else total


def _array(text: str) -> list[str | None]:
    """Members of a PostgreSQL array literal."""
    found = re.findall(r'"((?:[^"\\]|\\.)*)"|([^,{}]+)', text)
    return [None if bare == "NULL" else bare or re.sub(r"\\(.)", r"\1", quoted) for quoted, bare in found]


def outcome(batch: ChangeBatch) -> tuple[dict[int, Any], dict[int, tuple[str, str | None]]]:
    """Everything that a batch says of each record, by offset; NaN made comparable."""
    assert batch.before is not None
    after, before = bits(batch.after).to_pylist(), bits(batch.before).to_pylist()
    keys = batch.key.to_pylist() if batch.key is not None else [None] * len(batch)
    events = {}
    for i in range(len(batch)):
        events[int(batch.offset[i])] = repr(
            (
                int(batch.op[i]),
                batch.commit[i].tolist(),
                batch.inner[i].tolist(),
                bool(batch.has_commit[i]),
                int(batch.source_ts[i]),
                batch.source_name[batch.source_code[i]],
                bool(batch.snapshot[i]),
                keys[i],
                after[i],
                before[i],
                bool(batch.has_before[i]),
                sorted(n for n, m in batch.unavailable.items() if m[i]),
                sorted(n for n, m in batch.absent.items() if m[i]),
            )
        )
    return events, {b.index: (b.kind, b.column) for b in batch.bad}


def bits(table: pa.Table) -> pa.Table:
    """Dates and timestamps as integers: Python's calendar is narrower."""
    for i, column in enumerate(table.schema):
        if pa.types.is_temporal(column.type):
            integers = table.column(i).cast(pa.int32() if column.type.bit_width == 32 else pa.int64())
            table = table.set_column(i, column.name, integers)
    return table
