"""MongoDB change events: the document's own samples, and events built from BSON values.

The texts of built events are written by the ``bson`` package, which shares no code with the sink."""

import base64
import copy
import datetime
import json
import random
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bson import Binary, Decimal128, Int64, ObjectId, Regex, Timestamp, json_util
from bson.binary import UuidRepresentation
from bson.json_util import JSONMode, JSONOptions

from tests.support.hand import Event

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


Doc = dict[str, Any]


def plain(value: Any) -> Any:
    """A BSON value as the sink's plain JSON shows it, parsed."""
    if isinstance(value, dict):
        return {n: plain(v) for n, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, datetime.datetime):
        return value.strftime("%Y-%m-%dT%H:%M:%S.") + f"{value.microsecond // 1000:03}Z"
    if isinstance(value, (ObjectId, Decimal128)):
        return str(value)
    if isinstance(value, Binary):
        return str(value.as_uuid()) if value.subtype == 4 else {"$binary": _base64(value)}
    if isinstance(value, Regex):
        return {"$regularExpression": {"pattern": value.pattern, "options": "i"}}
    if isinstance(value, Timestamp):
        return {"$timestamp": {"t": value.time, "i": value.inc}}
    if isinstance(value, float) and value != value:
        return "NaN"
    return int(value) if isinstance(value, Int64) else value


def _base64(value: Binary) -> dict[str, str]:
    return {"base64": base64.b64encode(value).decode(), "subType": f"{value.subtype:02x}"}


@dataclass
class Change:
    """One change. Its event is built at the end, since ``after`` may come from a later lookup."""

    op: str
    identity: Any
    before: Doc | None
    after: Doc | None
    description: Description | None = None
    patch: Doc | None = None


@dataclass
class Collection:
    """Documents by ``_id`` and the changes made so far."""

    rng: random.Random
    documents: dict[str, Doc] = field(default_factory=dict)
    log: list[Change] = field(default_factory=list)

    def insert(self, document: Doc) -> None:
        self.documents[repr(document["_id"])] = document
        self.log.append(Change("c", document["_id"], None, copy.deepcopy(document)))

    def delete(self, name: str) -> None:
        gone = self.documents.pop(name)
        self.log.append(Change("d", gone["_id"], copy.deepcopy(gone), None))

    def replace(self, name: str, document: Doc) -> None:
        before = self.documents[name]
        self.documents[name] = {"_id": before["_id"], **document}
        self.log.append(Change("u", before["_id"], before, copy.deepcopy(self.documents[name])))

    def read(self, name: str) -> None:
        """A row of an incremental snapshot."""
        now = self.documents[name]
        self.log.append(Change("r", now["_id"], None, copy.deepcopy(now)))

    def update(self, name: str, edits: "list[Callable[[Doc], Edit | None]]") -> None:
        """Edits of one update, on fields that do not overlap."""
        before = copy.deepcopy(self.documents[name])
        document = self.documents[name]
        made = [edit for make in edits if (edit := make(document)) is not None]
        description = Description(
            {p: copy.deepcopy(v) for e in made for p, v in e.set.items()},
            [p for e in made for p in e.removed],
            [t for e in made for t in e.truncated],
        )
        patch: Doc | None = {"$v": 1}
        if description.set:
            patch["$set"] = dict(description.set)
        if description.removed:
            patch["$unset"] = dict.fromkeys(description.removed, True)
        if description.truncated or len(patch) == 1:
            patch = None  # the oplog of that time had no such thing
        self.log.append(Change("u", document["_id"], before, copy.deepcopy(document), description, patch))

    def events(self, dialect: Dialect = "strict", *, whole: float = 0.2) -> list[Event]:
        """The changes as events; an update's form is drawn for each."""
        return [self._event(i, change, dialect, whole) for i, change in enumerate(self.log)]

    def _event(self, i: int, change: Change, dialect: Dialect, whole: float) -> Event:
        rng = self.rng
        if change.op == "d":
            pre_image = change.before if rng.random() < 0.3 else None
            return event("d", change.identity, None, pre_image, dialect=dialect)
        if change.description is None:
            return event(change.op, change.identity, change.after, dialect=dialect)
        drawn = rng.random()
        if drawn < whole:
            found = self._looked_up(i, change)
            one = update_event(change.identity, change.description, dialect=dialect)
            value = dict(one.value or {}, after=None if found is None else text(found, dialect))
            return Event(one.key, value)
        if drawn < whole + 0.1:
            return update_event(change.identity, change.description, dialect=dialect, before=change.before)
        if drawn < whole + 0.25 and change.patch is not None:
            filtered = text({"_id": change.identity}, dialect)
            given = {"patch": text(change.patch, dialect), "filter": filtered}
            return event("u", change.identity, dialect=dialect, **given)
        return update_event(change.identity, change.description, dialect=dialect)

    def _looked_up(self, i: int, change: Change) -> Doc | None:
        """The document as the connector found it, at once or some changes later; None if it had been deleted."""
        found = change.after
        for later in self.log[i + 1 : i + 1 + self.rng.randint(0, 6)]:
            if later.identity == change.identity and later.op != "r":
                found = later.after
        return found


@dataclass
class Edit:
    """What one edit did, as a change stream describes it."""

    set: Doc = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    truncated: list[tuple[str, int]] = field(default_factory=list)


NAMES = ("a", "b", "c", "name", "tags", "address", "0", "1")


def draw_value(rng: random.Random, depth: int = 0) -> Any:
    """A BSON value of any kind."""
    kind = rng.randrange(17 if depth < 3 else 13)
    moment = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(milliseconds=rng.randrange(10**12))
    simple: list[Callable[[], Any]] = [
        lambda: rng.randint(-5, 5),
        lambda: Int64(rng.choice((-(2**63), 2**63 - 1, 2**40, 7))),
        lambda: rng.choice((0.5, -0.0, 10.0, 1e300, 0.1)),
        lambda: rng.choice(("", "x", "ünïcode ☃", '"quoted"', "2020-01-01", "null")),
        lambda: rng.random() < 0.5,
        lambda: None,
        lambda: ObjectId(rng.randbytes(12)),
        lambda: moment,
        lambda: Decimal128(rng.choice(("1.10", "-0", "12345678901234567890.123456789", "1E+10"))),
        lambda: Binary(rng.randbytes(rng.randrange(4)), 0),
        lambda: Binary.from_uuid(uuid.UUID(bytes=rng.randbytes(16)), UuidRepresentation.STANDARD),
        lambda: rng.choice((float("nan"), Regex("^a.*", "i"), Timestamp(5, 6))),
        lambda: "text " * rng.randrange(3),
    ]
    if kind < len(simple):
        return simple[kind]()
    if kind < 15:
        return {n: draw_value(rng, depth + 1) for n in rng.sample(NAMES, rng.randrange(4))}
    return [draw_value(rng, depth + 1) for _ in range(rng.randrange(4))]


def _edit(rng: random.Random, top: str) -> Callable[[Doc], Edit | None]:
    """An edit at or below a field of the document."""

    def make(document: Doc) -> Edit | None:
        path, holder, last = [top], document, top
        while rng.random() < 0.7:
            inside = holder[last] if isinstance(holder, list) else holder.get(last)
            if isinstance(inside, dict):
                last = rng.choice(NAMES)
            elif isinstance(inside, list) and inside:
                last = rng.randrange(len(inside) + 1)  # one beyond the end: $push
            else:
                break
            holder = inside
            path.append(str(last))
            if isinstance(holder, list) and last == len(holder):
                break
        dotted = ".".join(path)
        return _change(rng, holder, last, dotted)

    return make


def _change(rng: random.Random, holder: Any, last: Any, dotted: str) -> Edit | None:
    there = (last < len(holder)) if isinstance(holder, list) else last in holder
    now = holder[last] if there else None
    drawn = rng.random()
    if isinstance(now, list) and now and drawn < 0.4:
        size = rng.randrange(len(now))
        del now[size:]
        return Edit(truncated=[(dotted, size)])
    if drawn < 0.6 or not there:
        value = draw_value(rng, 1)
        if isinstance(holder, list) and not there:
            holder.append(value)
        else:
            holder[last] = value
        return Edit(set={dotted: value})
    if isinstance(holder, list):
        holder[last] = None  # $unset of an array's element
        return Edit(set={dotted: None})
    del holder[last]
    return Edit(removed=[dotted])


def draw_collection(seed: int, operations: int = 40, *, typed: bool = False) -> tuple[Collection, Dialect]:
    """A history of a small collection. ``typed``: some keys may be numbers or UUIDs, which needs typed keys."""
    rng = random.Random(seed)
    collection = Collection(rng)
    seven = Binary.from_uuid(uuid.UUID(int=7), UuidRepresentation.STANDARD)
    identities: list[Any] = [
        *((1, Int64(2), 5.5) if typed else ("1", "2", "5.5")), "03", "drei", ObjectId(b"twelve bytes"),
        {"x": 1, "y": "z"}, seven if typed else str(uuid.UUID(int=7)),
    ]  # fmt: skip
    identities = rng.sample(identities, rng.randint(1, 5))
    for _ in range(operations):
        identity = rng.choice(identities)
        name, drawn = repr(identity), rng.random()
        fields = {n: draw_value(rng) for n in rng.sample(NAMES, rng.randrange(len(NAMES)))}
        if name not in collection.documents:
            collection.insert({"_id": identity, **fields})
        elif drawn < 0.08:
            collection.delete(name)
        elif drawn < 0.14:
            collection.replace(name, fields)
        elif drawn < 0.2:
            collection.read(name)
        else:
            tops = rng.sample(NAMES, rng.randint(1, 3))
            collection.update(name, [_edit(rng, top) for top in tops])
    return collection, rng.choice(DIALECTS)


def truth(collection: Collection) -> list[str]:
    return sorted(json.dumps(plain(d), sort_keys=True) for d in collection.documents.values())
