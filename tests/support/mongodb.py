"""MongoDB change events: the document's own samples, and events built from BSON values.

The texts of built events are written by the ``bson`` package, which shares no code with the sink.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bson import json_util
from bson.json_util import JSONMode, JSONOptions

from tests.support.hand import Event

__all__ = ["DIALECTS", "SAMPLES", "Description", "Dialect", "event", "key_of", "sample", "text", "update_event"]

SAMPLES = Path(__file__).resolve().parent.parent / "fixtures" / "documents" / "mongodb"
Dialect = Literal["strict", "canonical", "relaxed"]
DIALECTS: tuple[Dialect, ...] = ("strict", "canonical", "relaxed")
_OPTIONS = {
    "strict": JSONOptions(json_mode=JSONMode.LEGACY, strict_number_long=True),
    "canonical": JSONOptions(json_mode=JSONMode.CANONICAL),
    "relaxed": JSONOptions(json_mode=JSONMode.RELAXED),
}


def sample(name: str) -> list[Any]:
    """The JSON values of a sample, which the fixture holds as the document prints it.

    Repaired: the numbers of the document's call-outs, ``(1)``, are taken out; so are dots in place of something
    left out; two words and the quotation marks that a machine translated are put back.
    """
    given = (SAMPLES / f"{name}.txt").read_text(encoding="utf-8")
    given = re.sub(r"\(\d+\)(?=[\s\"{}\]])", "", given)
    given = given.replace("{ ... ", "{ ")
    for translated, original in (("“", '"'), ("”", '"'), ("状态", "status"), ("开始", "BEGIN")):
        given = given.replace(translated, original)
    decoder, out, at = json.JSONDecoder(), [], 0
    given = given.strip()
    while at < len(given):
        value, at = decoder.raw_decode(given, at)
        out.append(value)
        while at < len(given) and given[at].isspace():
            at += 1
    return out


def text(value: Any, dialect: Dialect = "strict") -> str:
    """Extended JSON of a BSON value, as the bson package writes it."""
    return json_util.dumps(value, json_options=_OPTIONS[dialect])


def key_of(identity: Any, dialect: Dialect = "strict") -> dict[str, str]:
    """The Kafka key of the document with this ``_id``."""
    return {"id": text(identity, dialect)}


def source(**more: Any) -> dict[str, Any]:
    """A source block as the connector 2.x writes it."""
    return {
        "version": "2.7.0.Final", "connector": "mongodb", "name": "fulfillment", "ts_ms": 1_558_965_508_000,
        "snapshot": "false", "db": "inventory", "sequence": None, "ts_us": 1_558_965_508_000_000,
        "ts_ns": 1_558_965_508_000_000_000, "collection": "customers", "ord": 31, "lsid": None, "txnNumber": None,
        "wallTime": 1_558_965_508_000, **more,
    }  # fmt: skip


def event(
    op: str,
    identity: Any,
    after: Mapping[str, Any] | None = None,
    before: Mapping[str, Any] | None = None,
    *,
    dialect: Dialect = "strict",
    **more: Any,
) -> Event:
    """A change with whole images; ``more`` are further fields of the envelope."""
    value = {
        "before": None if before is None else text(before, dialect),
        "after": None if after is None else text(after, dialect),
        "updateDescription": None,
        "source": source(snapshot="true" if op == "r" else "false"),
        "op": op,
        "ts_ms": 1_558_965_515_240,
        "transaction": None,
        **more,
    }
    return Event(key_of(identity, dialect), value)


@dataclass(frozen=True, slots=True)
class Description:
    """What a change stream says of an update."""

    set: Mapping[str, Any]
    removed: Sequence[str] = ()
    truncated: Sequence[tuple[str, int]] = ()


def update_event(
    identity: Any, description: Description, *, dialect: Dialect = "strict", before: Mapping[str, Any] | None = None
) -> Event:
    """An update of ``capture.mode=change_streams``: no document after it."""
    told = {
        "updatedFields": text(dict(description.set), "relaxed") if description.set else None,
        "removedFields": list(description.removed) or None,
        "truncatedArrays": [{"field": f, "size": n} for f, n in description.truncated] or None,
    }
    return event("u", identity, None, before, dialect=dialect, updateDescription=told)
