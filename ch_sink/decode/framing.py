"""Framing: JSON with or without Connect's schema envelope, and Avro in Confluent framing (byte 0, schema id, datum).

The schema part of an envelope is constant and by far its longest part: its text is compared with those seen before,
and only the payload after it is decoded. Avro values are grouped by their schema id.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any, Literal, cast

import msgspec
import numpy as np

from ch_sink.decode.avro.schema import Node, parse, source_type
from ch_sink.decode.native.library import Joined, address, joined, library
from ch_sink.decode.native.scan import FEWEST
from ch_sink.errors import DecodeError
from ch_sink.model.values import Enclosed
from ch_sink.ports import SchemaRegistry
from ch_sink.types.connect import SourceType, parse_connect_schema

Format = Literal["auto", "json", "avro"]
AVRO_HEAD = 5
"""Bytes before an Avro datum: 0 and the schema id as a big-endian int32."""

_KEPT = 256
"""Schema texts that are remembered; a topic has one at a time."""
_ODD_ENVELOPE = re.compile(rb'\s*\{\s*"(?:schema|payload)"\s*:')
_HEAD = 9
_DOUBTFUL = (b'{"schema"', b'{"payload')
"""First bytes of a value that may be an envelope."""


@dataclass(frozen=True, slots=True, eq=False)
class Framed:
    """One schema text and what it declares; compared by identity."""

    prefix: bytes
    """``{"schema":…,"payload":``; the five bytes before an Avro datum; empty without schema."""
    schema: SourceType | None
    avro: Node | None = None
    """Avro only: the writer's schema. The payload is the whole value."""

    @property
    def null(self) -> bytes:
        """The payload of a null value."""
        if self.avro is None or self.avro.null_branch < 0:
            return b"null"
        return self.prefix + bytes((2 * self.avro.null_branch,))


SCHEMALESS = Framed(b"", None)
Group = tuple[Framed, list[int] | None, list[bytes]]
"""Values of one framing: their framing, their places (None: all), their payloads."""


class FramingError(DecodeError):
    """Some values, those at ``places``, are neither plain JSON nor a readable envelope."""

    def __init__(self, message: str, places: list[int]) -> None:
        super().__init__(message)
        self.places = places


class _Envelope(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    schema: msgspec.Raw
    payload: msgspec.Raw


class Envelopes:
    """Recognises framings and caches their schemas."""

    def __init__(self, registry: SchemaRegistry | None = None, format: Format = "auto") -> None:  # noqa: A002
        """``format``: the only one that is accepted; auto for any."""
        self._registry, self._format = registry, format
        self._last = SCHEMALESS
        self._known: dict[bytes, Framed] = {}
        self._decoder = msgspec.json.Decoder(_Envelope)

    def split(self, values: Sequence[bytes]) -> "list[Group]":
        """Values grouped by framing.

        Raises FramingError if an envelope or its schema cannot be read.
        """
        groups = self._all_alike(values) if len(values) != 1 else None
        return groups or self._each(values, self.exact if len(values) == 1 else self.one)

    def _all_alike(self, values: Sequence[bytes]) -> "list[Group] | None":
        """The one group of values that are all framed like the last one; None if they are not."""
        last = self._last
        if isinstance(values, Enclosed):
            same = last.prefix and values.only_head() == last.prefix
            return [(last, None, cast(list[bytes], values.parts))] if same else None
        if values and values[0][:1] == b"\0":
            last = self._known.get(values[0][:AVRO_HEAD], last)
        if last.avro is not None:
            together = joined(values)
            if _begin_with(together, last.prefix):
                return [(last, None, together)]
        elif last.prefix:
            prefix, start = last.prefix, len(last.prefix)
            if all([v.startswith(prefix) and v[-1] == 125 for v in values]):  # noqa: C419 - a list is faster here
                return [(last, None, [v[start:-1] for v in values])]
        elif self._format != "avro":
            together = joined(values)
            if _surely(together) or _sure(values, 3) or _sure(values, _HEAD):
                return [(last, None, together)]
        return None

    def _each(self, values: Sequence[bytes], frame: "Callable[[bytes], tuple[Framed, bytes]]") -> "list[Group]":
        groups: dict[Framed, tuple[list[int], list[bytes]]] = {}
        faults: dict[int, str] = {}
        for place, value in enumerate(values):
            try:
                framed, payload = frame(value)
            except DecodeError as error:
                faults[place] = error.message
                continue
            places, payloads = groups.setdefault(framed, ([], []))
            places.append(place)
            payloads.append(payload)
        if faults:
            raise FramingError(next(iter(faults.values())), list(faults))
        return [(framed, places, payloads) for framed, (places, payloads) in groups.items()]

    def one(self, value: bytes) -> tuple[Framed, bytes]:
        """Framing and payload of one value."""
        if value[:1] == b"\0":
            return self._avro(value), value
        if self._format == "avro":
            raise DecodeError("the value is not in Confluent framing: its first byte is not 0 (format: avro)")
        last = self._last
        if last.prefix and value.startswith(last.prefix) and value[-1] == 125:
            return last, value[len(last.prefix) : -1]
        if _is_plain(value):
            return self._plain(value)
        for prefix, framed in self._known.items():
            if framed.avro is None and value.startswith(prefix) and value[-1] == 125:
                self._last = framed
                return framed, value[len(prefix) : -1]
        return self._parse(value)

    def exact(self, value: bytes) -> tuple[Framed, bytes]:
        """Framing and payload of one value, read as a whole: a known schema text at its beginning proves nothing."""
        if value[:1] == b"\0" or self._format == "avro" or _is_plain(value):
            return self.one(value)
        return self._parse(value)

    def _avro(self, value: bytes) -> Framed:
        """The framing of an Avro value. Raises DecodeError if its schema does not exist, RegistryError."""
        head = value[:AVRO_HEAD]
        framed = self._known.get(head)
        if framed is None:
            framed = self._schema(head)
            self._remember(head, framed)
        self._last = framed
        return framed

    def _schema(self, head: bytes) -> Framed:
        if self._format == "json":
            raise DecodeError("the value is in Confluent framing (Avro, Protobuf or JSON Schema), not plain JSON")
        if len(head) < AVRO_HEAD:
            raise DecodeError(f"the value begins like Confluent framing but ends after {len(head)} bytes")
        schema_id = int.from_bytes(head[1:], "big", signed=True)
        if schema_id < 0:
            raise DecodeError(f"the value begins like Confluent framing, but schema id {schema_id} is not valid")
        if self._registry is None:
            raise DecodeError(
                f"the value is in Confluent framing (schema id {schema_id}), but no schema registry is configured",
                hint="set kafka.schema.registry.url",
            )
        found = self._registry.find(schema_id)
        if found is None:
            raise DecodeError(f"the schema registry has no schema with id {schema_id}")
        if found.kind != "AVRO":
            raise DecodeError(f"schema id {schema_id} is of type {found.kind}; only Avro and plain JSON are supported")
        read = _read(found.text, tuple(found.references))
        if isinstance(read, str):
            raise DecodeError(f"schema id {schema_id}: {read}")
        node, declared = read
        return Framed(head, declared, node)

    def _remember(self, prefix: bytes, framed: Framed) -> None:
        if len(self._known) >= _KEPT:
            self._known.pop(next(iter(self._known)))
        self._known[prefix] = framed

    def _plain(self, value: bytes) -> tuple[Framed, bytes]:
        self._last = SCHEMALESS
        return SCHEMALESS, value

    def _parse(self, value: bytes) -> tuple[Framed, bytes]:
        try:
            envelope = self._decoder.decode(value)
        except msgspec.ValidationError:
            return self._plain(value)  # a row or key with a column of that name
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise DecodeError(f"schema envelope: {error}") from error
        schema, payload = bytes(envelope.schema), bytes(envelope.payload)
        if schema[:1] not in b"{n" and payload[:1] != b"{":
            return self._plain(value)
        if schema == b"null":
            return SCHEMALESS, payload
        prefix = b'{"schema":' + schema + b',"payload":'
        framed = self._known.get(prefix)
        if framed is None:
            try:
                framed = Framed(prefix, parse_connect_schema(msgspec.json.decode(schema)))
            except (msgspec.DecodeError, ValueError, AttributeError, TypeError, RecursionError) as error:
                raise DecodeError(f"schema envelope: {error}") from error
            self._remember(prefix, framed)
        self._last = framed
        return framed, payload


@lru_cache(_KEPT)
def _read(text: str, references: tuple[str, ...]) -> tuple[Node, SourceType] | str:
    """An Avro schema and the type that it declares; the reason if it cannot be read, which many records may meet."""
    try:
        node = parse(text, references)
        if len(node.alternatives) > 1:
            return "the value itself is a union of several types; each row or key needs its own schema"
        return node, source_type(node)
    except DecodeError as error:
        return error.message
    except Exception as error:  # noqa: BLE001 (whatever a schema raises is reported for the records that name it)
        return f"Avro schema: {error or type(error).__name__}"


def _begin_with(values: Joined, head: bytes) -> bool:
    """Whether all values begin with the five bytes before an Avro datum."""
    if not values or not values[0].startswith(head) or values.lengths.min() < AVRO_HEAD:
        return False
    starts = values.ends - values.lengths
    fours: Any = np.ndarray((len(values.data) - 3,), dtype="<u4", buffer=values.data, strides=(1,))
    wanted = (int.from_bytes(head[at : at + 4], "little") for at in (0, 1))
    return all(bool((fours[starts + at] == four).all()) for at, four in enumerate(wanted))


def _surely(values: Joined) -> bool:
    """The same as `_sure` of three bytes, faster where the compiled scanner needs the values joined anyway."""
    native = library()
    if native is None or len(values) < FEWEST:
        return False
    return bool(native.ch_plain(values.data, address(values.ends), len(values)))


def _sure(values: Sequence[bytes], count: int) -> bool:
    """Whether the first bytes of all values, so many of each, show that none is an envelope."""
    doubtful = tuple(start[:count] for start in _DOUBTFUL)
    return all(
        head[:2] == b'{"' and not head.startswith(doubtful) for head in set(map(itemgetter(slice(count)), values))
    )


def _is_plain(value: bytes) -> bool:
    """Whether a value certainly is not a schema envelope."""
    if value[:2] == b'{"':
        return not value.startswith((b'{"schema"', b'{"payload"'))
    return _ODD_ENVELOPE.match(value) is None
