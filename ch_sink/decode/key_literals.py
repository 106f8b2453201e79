"""Keys whose literals are not of the type that their schema declares."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from ch_sink.types.connect import Field, SourceType

__all__ = ["as_written"]


def as_written(fields: Sequence[Field], payload: bytes) -> tuple[Field, ...]:
    """The key's fields; a field that is declared as an integer but written as text becomes text.

    SingleStore's ``InternalId`` is declared int64 and shown as 24 digits of text, which no int64 holds.
    """
    if all(field.type.kind != "int64" for field in fields):
        return tuple(fields)
    try:
        found = msgspec.json.decode(payload)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return tuple(fields)
    texts = {name for name, value in found.items() if isinstance(value, str)} if isinstance(found, dict) else set()
    return tuple(
        replace(f, type=SourceType("string", optional=f.type.optional))
        if f.type.kind == "int64" and f.name in texts
        else f
        for f in fields
    )
