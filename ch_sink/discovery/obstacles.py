"""Topics that cannot be replicated into a table: why, and what to change at the connector."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from ch_sink.decode.key_learning import REMEDY, is_struct_text, reason
from ch_sink.discovery.sample_rows import framed_payloads, row_pairs
from ch_sink.model.change import Records
from ch_sink.model.policy import Policy
from ch_sink.ports import SchemaRegistry
from ch_sink.sources import refusal

__all__ = ["Obstacle", "obstacle"]

_UUID = re.compile(rb'"?[0-9a-fA-F]{8}(-?[0-9a-fA-F]{4}){3}-?[0-9a-fA-F]{12}"?')


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why a topic cannot be served, and the next step."""

    title: str
    """What the finding is about: key, source, outbox."""
    reason: str
    remedy: str


def obstacle(
    parts: Sequence[Records], topic: str, connector: str, policy: Policy, registry: SchemaRegistry | None = None
) -> Obstacle | None:
    """The first obstacle to replicating a topic; None if there is none. Raises RegistryError."""
    refused = refusal(connector)
    if refused is not None:
        return Obstacle("source", refused.message, refused.hint or "")
    key = _struct_key(parts, policy, registry)
    if key is not None:
        return Obstacle("key", reason(topic, key), REMEDY)
    if _is_outbox(parts, policy, registry):
        return Obstacle(
            "outbox",
            f"topic {topic} holds messages of the outbox event router: each record is a separate event, its id is in "
            "the header 'id' and its key is the aggregate's, so a table with that key would keep only one event of "
            "each aggregate",
            "Let the connector write the outbox table itself to a topic, without the EventRouter transformation: its "
            "rows have the event's id as key. If the messages are whole rows and the newest one of each key is what "
            "you want, set events: flattened and key_columns.",
        )
    return None


def _struct_key(parts: Sequence[Records], policy: Policy, registry: SchemaRegistry | None) -> bytes | None:
    for key, value in row_pairs(parts, policy, registry):
        if key is not None and value is not None and key[:1] != b"\0":
            return key if is_struct_text(key) else None
    return None


def _is_outbox(parts: Sequence[Records], policy: Policy, registry: SchemaRegistry | None) -> bool:
    """Whether every record has an event's id in the header ``id``, a primitive key, and no envelope as its value."""
    if policy.events.form == "envelope" or (policy.events.form == "flattened" and policy.keys.columns):
        return False
    seen = 0
    for key, value, headers in _records(parts):
        if value is None:
            continue
        ids = [content for name, content in headers if name == "id"]
        if len(ids) != 1 or ids[0] is None or _UUID.fullmatch(ids[0]) is None or not _is_primitive(key, registry):
            return False
        if any(_is_envelope(payload) for _, payload in framed_payloads([value], registry)):
            return False
        seen += 1
    return seen > 0


def _records(
    parts: Sequence[Records],
) -> Iterator[tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]]:
    for part in parts:
        for place, (key, value) in enumerate(zip(part.keys, part.values, strict=True)):
            yield key, value, (part.headers[place] or []) if part.headers is not None else []


def _is_primitive(key: bytes | None, registry: SchemaRegistry | None) -> bool:
    for framed, payload in framed_payloads([key], registry):
        return framed.schema.kind != "struct" if framed.schema is not None else payload[:1] != b"{"
    return key is not None


def _is_envelope(payload: bytes) -> bool:
    try:
        found = msgspec.json.decode(payload)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and "op" in found and ("after" in found or "before" in found)
