"""Which connector wrote a topic: ``source.connector`` of its newest change event."""

from collections.abc import Sequence

import msgspec

from ch_sink.decode.avro.events import as_json
from ch_sink.decode.framing import Envelopes
from ch_sink.errors import DecodeError
from ch_sink.model.change import Records
from ch_sink.ports import SchemaRegistry

__all__ = ["connector_of"]


class _Source(msgspec.Struct, gc=False):
    connector: str = ""


class _Event(msgspec.Struct, gc=False):
    source: _Source | None = None


_decoder = msgspec.json.Decoder(_Event)


def connector_of(parts: Sequence[Records], registry: SchemaRegistry | None = None) -> str:
    """The connector's name, from the last record that states it; empty if none does. Raises RegistryError."""
    envelopes = Envelopes(registry)
    for part in reversed(parts):
        for value in reversed(part.values):
            try:
                found = _decoder.decode(as_json(*envelopes.one(value))).source if value else None
            except (DecodeError, msgspec.DecodeError, ValueError, RecursionError):
                continue
            if found is not None and found.connector:
                return found.connector
    return ""
