"""Unions of several types: structs with one field set, named after the type that the value has.

``String``, ``JSON`` and ``Tuple`` columns take them as any other struct: the value with its type's name. Every other
column takes the value itself, if it is of a type that goes into the column.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from ch_sink.errors import DecodeError, TableError
from ch_sink.types.connect import SourceType
from ch_sink.types.converter import Converted, Converter, masked
from ch_sink.types.nested import field, struct_wire

__all__ = ["UNION", "AnyBranch", "takes_branches"]

UNION = "io.confluent.connect.avro.Union"
"""Connect's name for the struct."""
_AS_STRUCT = ("String", "JSON", "Tuple")


def takes_branches(source: SourceType | None, target: str) -> bool:
    """Whether a column of this type takes the value of a union rather than the struct around it."""
    return source is not None and source.name == UNION and source.kind == "struct" and target not in _AS_STRUCT


class AnyBranch:
    """The value of whichever field is set, by the converter of that field's type."""

    def __init__(self, source: SourceType, target: str, convert: Callable[[SourceType], Converter]) -> None:
        """``convert`` raises TableError for a type that does not go into the column; so does this, if none does."""
        names, parts = tuple(f.name for f in source.fields), list[Converter]()
        fitting: list[Converter] = []
        for member in source.fields:
            try:
                made = convert(member.type)
                fitting.append(made)
            except TableError:
                made = _Refused(member.name, target)
            parts.append(made)
        if not fitting:
            raise TableError(
                f"a union of {', '.join(names)} does not go into {target}",
                hint="String and JSON take any union, with the name of the value's type; see docs/types.md",
            )
        self.wire: Any = struct_wire(names, parts)
        self.arrow = fitting[0].arrow
        self._branches = tuple((name, f"f{i}", part) for i, (name, part) in enumerate(zip(names, parts, strict=True)))

    def convert(self, values: list[Any]) -> Converted:
        chosen = np.full(len(values), -1, dtype=np.int64)
        arrays: list[pa.Array] = []
        unavailable: list[int] = []
        start = clamped = 0
        for name, attribute, part in self._branches:
            found = [None if value is None else field(value, name, attribute) for value in values]
            places = [i for i, value in enumerate(found) if value is not None and not _is_null(value)]
            if not places:
                continue
            made = part.convert([found[i] for i in places])
            arrays.append(made.array)
            clamped += made.clamped
            if made.unavailable is not None:
                unavailable += [place for place, gone in zip(places, made.unavailable.tolist(), strict=True) if gone]
            chosen[places] = np.arange(start, start + len(places))
            start += len(places)
        if not arrays:
            return Converted(pa.nulls(len(values), self.arrow))
        whole = pa.concat_arrays(arrays).take(pa.array(chosen, mask=chosen < 0))
        return Converted(whole, masked(len(values), unavailable), clamped)


class _Refused:
    """A type of the union that does not go into the column: any value of it is a bad record."""

    wire: Any = msgspec.Raw
    arrow = pa.null()

    def __init__(self, name: str, target: str) -> None:
        self._reason = f"the value is the union's {name}, which does not go into {target}"

    def convert(self, values: list[Any]) -> Converted:
        raise DecodeError(self._reason, hint="make the column String or JSON, which take any type of the union")


def _is_null(value: Any) -> bool:
    return isinstance(value, msgspec.Raw) and bytes(value) == b"null"
