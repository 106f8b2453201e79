"""Document events for the compiled scanner: drawn tables and policies, whole documents, updates, deletes, faults.

``python -m tests.support.document_fuzz LIBRARY SEED SECONDS`` decodes them with that library until the time is up.
"""

import ctypes
import json
import random
import sys
from typing import Any

import pyarrow as pa

from ch_sink.decode.mongodb.texts import plain_text
from ch_sink.decode.mongodb.values import parse
from ch_sink.decode.native.library import Keep, Members, program
from ch_sink.decode.native.scan import Room, scan, written
from ch_sink.errors import DecodeError
from ch_sink.model.policy import policy_of
from ch_sink.types.column import Column
from tests.support.decoding import replacing
from tests.support.document_texts import document, value
from tests.support.mongodb import source
from tests.support.scan_fuzz import Group, fuzz, records_of
from tests.support.scan_values import changed

__all__ = ["documents", "texts_apart"]

_BINARY = pa.binary()

MORE = (
    Column("n", "Nullable(Int32)"), Column("name", "Nullable(String)"), Column("a", "String"), Column("b", "String"),
    Column("created", "Nullable(DateTime64(3, 'UTC'))"), Column("deep", "Nullable(String)"), Column("f", "JSON"),
    Column("tags", "Array(String)"), Column("number", "Nullable(Decimal(20, 2))"), Column("c", "FixedString(12)"),
)  # fmt: skip
IDS = {
    "int": lambda i: str(i),
    "long": lambda i: f'{{"$numberLong": "{i}"}}',
    "text": lambda i: f'"k{i}"',
    "digits": lambda i: f'"{i}"',
    "oid": lambda i: f'{{"$oid": "{i:024x}"}}',
    "double": lambda i: f"{i}.5",
    "uuid": lambda i: f'{{"$uuid": "00112233-4455-6677-8899-{i:012x}"}}',
    "binary": lambda i: f'{{"$binary": "AAAAAAAAAAAAAAAAAAA{chr(65 + i % 26)}{chr(65 + i // 26)}w==","$type": "04"}}',
    "object": lambda i: f'{{"a": {i}, "b": "x"}}',
    "decimal": lambda i: f'{{"$numberDecimal": "{i}.50"}}',
    "date": lambda i: f'{{"$date": {i}}}',
    "escaped": lambda i: f'"\\\\{i}"',
}
OPS = ("c", "c", "cu", "cud", "rcud", "r", "cudt", "cm")


def _event(rnd: random.Random, op: str, identity: str, forms: dict[str, Any]) -> bytes:
    def image() -> Any:
        text = document(rnd, identity, wild=forms["wild"])
        return text if rnd.random() > forms["odd"] else rnd.choice((None, {"_id": 1}, 5, text))

    after = image() if op not in "dt" or rnd.random() < 0.05 else None
    event: dict[str, Any] = {"before": image() if rnd.random() < forms["before"] else None, "after": after}
    if forms["described"]:
        event["updateDescription"] = None
        if op == "u":
            fields = value(rnd, tame=True) if rnd.random() < 0.02 else '{"n": 5, "name": "x"}'
            event["updateDescription"] = {"removedFields": None, "updatedFields": fields, "truncatedArrays": None}
            if rnd.random() < forms["partial"]:
                event["after"] = None
    if forms["patch"]:
        event |= {"patch": '{"$set": {"n": 1}}' if op == "u" else None, "filter": None}
    more: dict[str, Any] = {"ord": rnd.choice((1, 2, None, -1, 2**33, 2**64)), "tord": rnd.choice((None, 5, -5, 2**63))}
    block = source(**more if forms["vary"] else {"ord": 3}) | {"snapshot": "true" if op == "r" else "false"}
    if forms["vary"]:
        block["ts_ms"] = rnd.choice((1, None, -5, 1_700_000_000_000, 2**62))
    event |= {"source": block, "op": op, "ts_ms": 1, "transaction": None}
    if forms["first"]:
        event = dict(sorted(event.items(), reverse=True))
    text = json.dumps(event, ensure_ascii=forms["ascii"], separators=(",", ":"))
    return text.encode(errors="surrogatepass")


def documents(seed: object) -> Group:
    """A drawn table and groups of its events."""
    rnd = random.Random(str(seed))
    kinds = ("Nullable(String)", "String", "String", "JSON")
    key = Column("_id", rnd.choice(("String", "String", "String", "Int64", "FixedString(24)", "UUID")))
    columns = [key, *rnd.sample(MORE, rnd.choice((0, 0, 1, 3)))]
    if rnd.random() < 0.9:
        columns.append(Column("document", rnd.choice(kinds)))
    named = {column.name for column in columns}
    paths = (("name", "deep.a"), ("b", "tags.0"), ("a", "a.b"))
    policy = policy_of(
        out_of_range=rnd.choice(("fail", "fail", "clamp", "null")),
        document_keys="typed" if rnd.random() < 0.1 else "plain",
        document_columns=tuple(pair for pair in paths if pair[0] in named) if rnd.random() < 0.3 else (),
        tombstones=rnd.choice(("auto", "ignore")),
    )
    groups = []
    kind = {"Int64": "int", "UUID": "binary", "FixedString(24)": "oid"}.get(key.type) or rnd.choice(list(IDS))
    for _ in range(rnd.randrange(1, 4)):
        forms = {
            "wild": rnd.choice((0.0, 0.0, 0.02, 0.2)), "odd": rnd.choice((0.0, 0.0, 0.01)),
            "before": rnd.choice((0.0, 0.0, 0.5, 1.0)), "described": rnd.random() < 0.5,
            "partial": rnd.choice((0.0, 0.0, 0.3)), "patch": rnd.random() < 0.2, "vary": rnd.random() < 0.2,
            "first": rnd.random() < 0.1, "ascii": rnd.random() < 0.6,
        }  # fmt: skip
        ops, mixed = rnd.choice(OPS), rnd.random() < 0.05
        marks = (", ", ": ") if rnd.random() < 0.1 else (",", ":")
        keys: list[bytes | None] = []
        values: list[bytes | None] = []
        for i in range(rnd.choice((1, 2, 3, 17, 40, 64))):
            identity = IDS[rnd.choice(list(IDS)) if mixed else kind](i)
            keys.append(json.dumps({"id": identity}, separators=marks).encode())
            values.append(_event(rnd, rnd.choice(ops), identity, forms) if rnd.random() < 0.95 else None)
        for chosen, share in ((values, 0.25), (keys, 0.1)):
            at = rnd.randrange(len(values))
            if rnd.random() < share:
                chosen[at] = changed(chosen[at] or b"x", rnd) if rnd.random() < 0.9 else None
        groups.append(records_of(keys, values))
    return Group(replacing(tuple(columns), ("_id",)), policy, rnd.random() < 0.5, groups)


def texts_apart(seed: object, native: ctypes.CDLL) -> tuple[list[str], int]:
    """What compiled code writes otherwise than Python of some drawn texts, and how many it writes."""
    rnd = random.Random(str(seed))
    whole = rnd.random() < 0.7
    texts = [document(rnd) if whole else value(rnd) for _ in range(200)]
    payloads = [
        json.dumps({"a": text}, ensure_ascii=rnd.random() < 0.5, separators=(",", ":")).encode() for text in texts
    ]
    made = program(payloads[:1], Members({"a": Keep()}))
    assert made is not None
    found = scan(native, made, payloads, Room())
    assert found is not None, payloads
    names = ["_id", "a", "name"] if whole else []
    result = written(found, made.slots["a",], names, values=not whole)
    arrays, wrong = result.whole(_BINARY).to_pylist(), []
    literals = [parse(result.literals(number)) for number in range(len(names))]
    for i, (text, state) in enumerate(zip(texts, result.states.tolist(), strict=True)):
        assert result.given(i) == text
        if state != 2:
            continue
        try:
            meant = parse(text)
        except (DecodeError, RecursionError) as error:
            meant = error
        if isinstance(meant, Exception) or (whole and not isinstance(meant, dict)) or plain_text(meant) != arrays[i]:
            wrong.append(f"{text!r}: {meant!r}, written {arrays[i]!r}")
            continue
        wrong += [
            f"{text!r}: {name}" for name, one in zip(names, literals, strict=True)
            if isinstance(meant, dict) and one[i] != meant.get(name)
        ]  # fmt: skip
    return wrong, int((result.states == 2).sum())


if __name__ == "__main__":
    fuzz(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), (documents,), texts_apart)
