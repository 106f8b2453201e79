"""Kafka keys written in Avro, as columns."""

from collections.abc import Sequence
from typing import Any

from ch_sink.decode.avro.convert import convert
from ch_sink.decode.avro.layout import AvroColumn
from ch_sink.decode.avro.program import whole
from ch_sink.decode.avro.scanned import read_group
from ch_sink.decode.avro.vectors import Struct
from ch_sink.decode.framing import Framed
from ch_sink.decode.json.columns import Fault
from ch_sink.errors import DecodeError

__all__ = ["holds_documents", "read_keys"]


def read_keys(framed: Framed, columns: Sequence[AvroColumn], values: list[bytes], *, primitive: bool) -> list[Any]:
    """Arrow arrays of the key's columns; a primitive key is one column. Raises DecodeError."""
    assert framed.avro is not None
    found, bad = read_group(framed.avro, values, whole(framed.avro))
    if bad is not None:
        raise DecodeError("key: its bytes do not follow the schema that they name")
    arrays: list[Any] = []
    for column in columns:
        vector = found if primitive else found.fields[column.field] if isinstance(found, Struct) else None
        if vector is None:
            raise DecodeError("key: it is not a record")
        if not primitive and isinstance(found, Struct):
            vector.only(found.present())
        try:
            arrays.append(convert(column.name, column.converter, vector, range(len(values))).array)
        except Fault as fault:
            raise DecodeError(f"key {fault.reason}", column=fault.column) from fault
    return arrays


def holds_documents(framed: Framed) -> bool:
    """Whether this schema's after image is text, as a document's is."""
    after = framed.avro.present.member("after") if framed.avro is not None else None
    return after is not None and after.type.present.kind == "string"
