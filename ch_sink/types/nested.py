"""Arrays, maps, tuples and unions: built from their parts' converters.

A union of several types is a struct with one field set, named after the type that the value has. ``String``, ``JSON``
and ``Tuple`` columns take it as any other struct: the value with its type's name. Every other column takes the value
itself, if it is of a type that goes into the column.
"""

from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypedDict

import msgspec
import numpy as np
import pyarrow as pa

from ch_sink.errors import DecodeError, TableError
from ch_sink.types.connect import SourceType
from ch_sink.types.converter import Converted, Converter, OutOfRange, Placeholder, masked, nullable, shown


class Arrays:
    """Arrays into Array(T). The column type has no null: the server stores a null array as an empty one."""

    def __init__(self, items: Converter, known: Placeholder | None) -> None:
        item: Any = nullable(items.wire)
        self.wire: Any = list[item]
        self.arrow = pa.list_(items.arrow)
        self._items = items
        self._known = known

    def convert(self, values: list[Any]) -> Converted:
        known = self._known
        unavailable: list[int] = []
        if known is not None:
            lengths = (1, len(known.codes))
            unavailable = [i for i, v in enumerate(values) if v is not None and len(v) in lengths and known.is_array(v)]
            if unavailable:
                values = list(values)
                for i in unavailable:
                    values[i] = None
        try:
            sizes = [0 if v is None else len(v) for v in values]
            flat = [item for v in values if v is not None for item in v]
        except TypeError as fault:
            raise DecodeError(f"expected an array: {fault}") from fault
        inner = self._items.convert(flat)
        offsets = np.zeros(len(values) + 1, dtype=np.int32)
        np.cumsum(sizes, out=offsets[1:])
        mask = pa.array([v is None for v in values], pa.bool_())
        array = pa.ListArray.from_arrays(pa.array(offsets), inner.array, type=self.arrow, mask=mask)
        return Converted(array, masked(len(values), unavailable), inner.clamped)


class Sets:
    """Labels with commas between (``EnumSet``) into Array(T)."""

    wire: Any = str

    def __init__(self, inner: Arrays) -> None:
        self.arrow = inner.arrow
        self._inner = inner

    def convert(self, values: list[Any]) -> Converted:
        try:
            return self._inner.convert([None if v is None else v.split(",") if v else [] for v in values])
        except AttributeError as fault:
            raise DecodeError(f"expected a text: {fault}") from fault


class Maps:
    """Maps into Map(K, V), from a JSON object or a list of pairs."""

    def __init__(self, keys: Converter, items: Converter, known: Placeholder | None, *, wire: Any = None) -> None:
        item: Any = nullable(items.wire)
        self.wire: Any = wire if wire is not None else dict[str, item]
        self.arrow = pa.map_(keys.arrow, items.arrow)
        self._keys, self._items = keys, items
        self._known = known

    def convert(self, values: list[Any]) -> Converted:
        unavailable: list[int] = []
        pairs: list[list[Any]] = []
        for i, value in enumerate(values):
            if value is not None and self._known is not None and self._known.is_map(value):
                unavailable.append(i)
                value = None
            found = [] if value is None else list(value.items()) if isinstance(value, dict) else list(value)
            pairs.append(found)
        keys = self._keys.convert([k for found in pairs for k, _ in found])
        items = self._items.convert([v for found in pairs for _, v in found])
        offsets = np.zeros(len(values) + 1, dtype=np.int32)
        np.cumsum([len(found) for found in pairs], out=offsets[1:])
        gone = set(unavailable)
        nulls = pa.array([value is None or i in gone for i, value in enumerate(values)], pa.bool_())
        array = pa.MapArray.from_arrays(pa.array(offsets), keys.array, items.array, type=self.arrow, mask=nulls)
        return Converted(array, masked(len(values), unavailable), keys.clamped + items.clamped)


class JsonTexts:
    """Texts of JSON into Array, Map or Tuple (hstore, JSON columns): each is decoded, then converted."""

    wire: Any = str

    def __init__(self, inner: Converter, known: Placeholder | None) -> None:
        self.arrow = inner.arrow
        self._inner = inner
        self._known = known
        self._decode = msgspec.json.Decoder(nullable(inner.wire), float_hook=Decimal).decode

    def convert(self, values: list[Any]) -> Converted:
        known = self._known
        places = [i for i, v in enumerate(values) if v is not None and known is not None and known.is_text(v)]
        gone = set(places)
        try:
            found = [None if v is None or i in gone else self._decode(v) for i, v in enumerate(values)]
        except (msgspec.DecodeError, ValueError, RecursionError, TypeError) as fault:
            raise DecodeError(f"not JSON of the column's type: {fault}") from fault
        inner = self._inner.convert(found)
        unavailable = masked(len(values), places)
        if inner.unavailable is not None:
            unavailable = inner.unavailable if unavailable is None else inner.unavailable | unavailable
        return Converted(inner.array, unavailable, inner.clamped)


class Wrapped:
    """A column ``Nullable(Tuple(items …))`` around an array or map, which itself has no null."""

    def __init__(self, inner: Converter, name: str) -> None:
        self.wire = inner.wire
        self.arrow = pa.struct([pa.field(name, inner.arrow)])
        self._inner = inner

    def convert(self, values: list[Any]) -> Converted:
        inner = self._inner.convert(values)
        nulls = np.array([v is None for v in values], dtype=np.bool_)
        if inner.unavailable is not None:
            nulls |= inner.unavailable
        array = pa.StructArray.from_arrays([inner.array], fields=list(self.arrow), mask=pa.array(nulls))
        return Converted(array, inner.unavailable, inner.clamped)


class Structs:
    """Structs into Tuple: by field name where the tuple has names, else in order."""

    def __init__(
        self,
        arrow: pa.DataType,
        names: tuple[str, ...],
        attributes: tuple[str, ...],
        parts: tuple[Converter, ...],
        wire: Any,
    ) -> None:
        """``names``: the source's field of each member of the tuple; ``attributes``: its name in a decoded Struct."""
        self.wire = wire
        self.arrow = arrow
        self._members = tuple(zip(names, attributes, parts, strict=True))

    def convert(self, values: list[Any]) -> Converted:
        columns: list[pa.Array] = []
        clamped = 0
        for name, attribute, part in self._members:
            try:
                found = part.convert([None if v is None else field(v, name, attribute) for v in values])
            except OutOfRange as fault:
                raise OutOfRange(f"{name}: {fault.message}", hint=fault.hint) from fault
            columns.append(found.array)
            clamped += found.clamped
        nulls = pa.array([v is None for v in values], pa.bool_())
        return Converted(pa.StructArray.from_arrays(columns, fields=list(self.arrow), mask=nulls), None, clamped)


def field(value: Any, name: str, attribute: str) -> Any:
    """A field of a struct's literal, whatever holds it."""
    if isinstance(value, dict):
        return value.get(name)
    if isinstance(value, msgspec.Struct):
        return getattr(value, attribute)
    raise DecodeError(f"expected an object, found {shown(value)}")


def struct_wire(names: tuple[str, ...], parts: list[Converter]) -> Any:
    """A Struct of these fields, all nullable; others are skipped. A dict if msgspec takes no Struct of such names."""
    fields = [(f"f{i}", nullable(part.wire), None) for i, part in enumerate(parts)]
    try:
        return msgspec.defstruct(
            "StructLiteral", fields, rename=dict(zip((f[0] for f in fields), names, strict=True)), gc=False
        )
    except ValueError:  # a name with a quote, a backslash or a control character
        members = {name: wire for name, (_, wire, _) in zip(names, fields, strict=True)}
        return TypedDict("StructLiteral", members, total=False)  # type: ignore[operator]


def pairs_wire(keys: Converter, items: Converter) -> Any:
    """The annotation of a map that is written as a list of pairs."""
    key: Any = keys.wire
    item: Any = nullable(items.wire)
    return list[tuple[key, item]]


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
