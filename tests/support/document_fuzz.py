"""Document events for the compiled scanner: drawn tables and policies, whole documents, updates, deletes, faults.

``python -m tests.support.document_fuzz LIBRARY SEED SECONDS`` decodes them with that library until the time is up."""

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
from tests.support.mongodb import source
from tests.support.scan_fuzz import Group, fuzz, records_of
from tests.support.scan_records import changed

OID, LONG = "5f1e27a826F08B2730779e1f", "9223372036854775807"
NUMBERS = """
0 -0 1 -1 5 10 127 2147483648 -2147483649 9007199254740993 9223372036854775807 9223372036854775808 -9223372036854775808
-9223372036854775807 18446744073709551615 18446744073709551616 100000000000000000000 1234567890123456789012345 01 -01 00
0.0 -0.0 0.1 -0.1 1.0 -1.0 1.10 1.00 0.5 0.05 0.001 0.0001 0.00001 0.000123 0.0100 123456789012345.0 12345678901234.0
12345678901234.5 1234567890123456.5 0.123456789012345 0.12345678901234 0.012345678901234 99999999999999.9 4.35 0.3 2.675
1e5 1E5 1e16 1e-7 1.5e3 1e400 -1e400 1e-400 100000000000000000000.0 1234567890.12345 1. .5 - -a 1.e5 1e 0x1 1_0 +1
9.5 8.25 33.333333333333 100.0 1000000.0 1000000000000000.0 12345.678 NaN Infinity -Infinity tru nul null true false
""".split()  # fmt: skip
STRINGS = (
    r"", r"a", r"plain text of some length, longer than sixteen bytes", r"\"quoted\"", r"back\\slash", r"a\/b",
    r"\n\r\t",
    r"\b\f", r"\u0000", r"\u001f", r"\u0020", r"\u007f", r"\u0022", r"\u005c", r"\u005C\u002f", r"\u00e9",
    r"\ud83e\udd80",
    r"\ud83e", r"\udd80", r"\ud83e\u0041", r"\ud83ex", r"\uD83E\uDD80", r"\u12", r"\x", r"\u20ac and more than that",
    "é", "🦀 and text", "Größe von etwas, das länger als sechzehn Bytes ist", "\x7f", "\x85\u2028", "\x00", "\x1f",
    "\t",
    "\ufeff", "$", "$oid", OID, "12", "-5", "1.5", "a.b", r"ends in \\", r"fifteen bytes, \"", r"sixteen bytes ..\n",
)  # fmt: skip
KEYS = (
    "a", "b", "c", "n", "name", "_id", "", "", "é", "a.b", "a.", "$x", "$oid", "$date", r"\u0061", r"q\"t",
    "$numberLong",
    "created", "a key of more than sixteen bytes", "A key of more than sixteen bytes", "aaaaaaaa", "aaaaaaab", "12",
    "🦀",
    r"\u00e9", "x\x7f", "deep", "tags", "\x01",
)  # fmt: skip
DATES = """
0 1 -1 1700000000000 1709210096789 -62167219200000 -62167219200001 253402300799999 253402300800000 -62135596800000
9223372036854775807 951782400000 -2203891200001 1e3 1.5 null true
""".split()
INSTANTS = (
    "2024-02-29T12:34:56.789Z", "2024-02-29T12:34:56Z", "2023-02-29T12:34:56Z", "1900-02-29T00:00:00Z",
    "0000-02-29T00:00:00Z",
    "2000-02-29T23:59:59.999999999Z", "2024-01-01T00:00:00.1Z", "2024-01-01T00:00:00.12345Z", "2024-01-01T24:00:00Z",
    "2024-01-01T00:00:00+01:00", "2024-01-01T00:00:00", "2024-01-01 00:00:00Z", "2024-13-01T00:00:00Z",
    "9999-12-31T23:59:59.999Z",
    "2024-04-31T00:00:00Z", "2024-01-01T00:60:00Z", "2024-01-01T00:00:60Z", "2024-01-01T00:00:00.Z",
    "2024-01-01T00:00:00,5Z",
    "10000-01-01T00:00:00Z", "2024-01-01T00:00Z", "2024-00-01T00:00:00Z", "2024-01-00T00:00:00Z", "infinity", "",
    "2024-01-01T00:00:00.1234567890Z", "2024-01-01T00:00:00.00000000Z", "-001-01-01T00:00:00Z",
    "2024-01-01T00:00:00.5z",
)  # fmt: skip
INTEGERS = ("5", "-5", "0", "-0", "05", "+5", " 5", "5 ", "1_0", LONG, "-" + LONG, "9223372036854775808", "", "x", "１")
DOUBLES = (
    "1.5",
    "1.0",
    "5",
    "-0.0",
    "0.1",
    "1e5",
    "NaN",
    "Infinity",
    "-Infinity",
    "+Infinity",
    "1.10",
    " 1.5",
    "x",
    "4.35",
)
DECIMALS = ("1.10", "5", "-5", "+5", "1E+3", "1e-3", "NaN", "Infinity", "-inf", ".5", "5.", "00.5", "x", "", "1e", " 1")
BASE64 = (
    "ABEiM0RVZneImaq7zN3u/w==", "ABEiM0RVZneImaq7zN3u/w==", "/+7dzLuqmYh3ZlVEMyIRAA==", "ABEiM0RVZneImaq7zN3u/x==",
    "AP8=", "AP9=", "AA==", "AB==", "AAAA", "", "A", "AA", "AAA", "A===", "====", "AA=A", "A-_A", "AAAA AAAA",
    "AAAA\\n", "ABEiM0RVZneImaq7zN3u", "ABEiM0RVZneImaq7zN3u/wD/", "+///",
)  # fmt: skip
OIDS = (OID, OID.lower(), OID[:-1], OID + "a", "z" * 24, "", OID[:-1] + '\\"')


def _wrapper(rnd: random.Random, space: str) -> str:
    def one(name: str, content: str) -> str:
        return f'{{{space}"{name}"{space}:{space}{content}{space}}}'

    def quoted(*choices: str) -> str:
        return f'"{rnd.choice(choices)}"'

    kind = rnd.randrange(25)
    if kind < 3:
        return one("$oid", quoted(*OIDS[:2]) if rnd.random() < 0.8 else quoted(*OIDS))
    if kind < 6:
        return one("$date", rnd.choice((rnd.choice(DATES), str(rnd.randrange(-(10**14), 3 * 10**14)))))
    if kind == 6:
        return one("$date", one("$numberLong", quoted(*INTEGERS, *DATES)))
    if kind < 9:
        return one("$date", quoted(*INSTANTS))
    if kind < 12:
        return one(rnd.choice(("$numberLong", "$numberInt")), quoted(*INTEGERS))
    if kind == 12:
        return one("$numberDouble", quoted(*DOUBLES, *NUMBERS))
    if kind == 13:
        return one("$numberDecimal", quoted(*DECIMALS))
    if kind < 17:
        data, subtype = quoted(*BASE64), quoted("00", "03", "04", "04", "04", "fF", "0", "4", "004", "zz", "")
        if rnd.random() < 0.5:
            return f'{{"$binary":{space}{data},{space}"$type":{space}{subtype}}}'
        return one("$binary", f'{{{space}"base64":{data}{space},{space}"subType":{space}{subtype}{space}}}')
    text = rnd.choice(('"x"', "5", "null", "{}", '{"t":1,"i":2}', "true", '{"$numberLong":"5"}', quoted(*OIDS)))
    return rnd.choice((
        f'{{"$binary":"ABEiM0RVZneImaq7zN3u/w==",{space}"$type":"{rnd.choice(("00", "03", "04", "zz"))}"}}',
        '{"$binary":{"base64":"AP8=","subType":"00"}}', '{"$uuid":"00112233-4455-6677-8899-aabbccddeeff"}',
        '{"$regex":"^a","$options":"i"}', '{"$regularExpression":{"pattern":"^a","options":"i"}}', '{"$minKey":1}',
        '{"$timestamp":{"t":1,"i":2}}', '{"$undefined":true}', '{"$symbol":"s"}', '{"$code":"f()"}', '{"$ref":"x"}',
        one(rnd.choice(("$oid", "$date", "$numberLong", "$numberInt", "$numberDouble", "$numberDecimal", "$x")), text),
        f'{{"$oid":"{OID}","more":1}}', '{"$date":{"$numberLong":"5","more":1}}', '{"$date":5,"$date":6}',
        '{"a":1,"$oid":"x"}', '{"$numberLong":5}', '{"$numberInt":"99999999999999999999"}',
    ))  # fmt: skip


def value(rnd: random.Random, depth: int = 4, *, tame: bool = False) -> str:
    """A value. ``tame``: of ordinary kinds, as most documents have."""
    space = rnd.choice(("", "", " ", " ", "\n\t\r "))
    kind = rnd.random()
    if kind < 0.05 and not tame:
        return f"{rnd.randrange(10 ** rnd.randrange(1, 18))}.{rnd.randrange(10 ** rnd.randrange(1, 10))}"
    if kind < 0.25 or (kind > 0.75 and not depth):
        return rnd.choice(("1", "5.5", "null", "true", "1700000000", "-3")) if tame else rnd.choice(NUMBERS)
    if kind < 0.5:
        return rnd.choice(('"a"', '"some text"', r'"a \"b\" \n"', '"é"')) if tame else f'"{rnd.choice(STRINGS)}"'
    if kind < 0.75:
        simple = (f'{{"$oid":{space}"{OID}"}}', '{"$date": 1700000000123}', '{"$numberLong": "5"}')
        return rnd.choice(simple) if tame else _wrapper(rnd, space)
    if kind < 0.85:
        return f"[{space}{f'{space},'.join(value(rnd, depth - 1, tame=tame) for _ in range(rnd.randrange(4)))}{space}]"
    return _object(rnd, depth - 1, space, [], tame=tame)


def _object(rnd: random.Random, depth: int, space: str, first: list[str], *, tame: bool) -> str:
    count = rnd.randrange(5)
    names = rnd.sample(KEYS[:6] if tame else KEYS, count) if rnd.random() < 0.95 else rnd.choices(KEYS[:4], k=count)
    if "_id" in names and first:
        names.remove("_id")
    members = [*first, *(f'"{name}"{space}:{space}{value(rnd, depth, tame=tame)}' for name in names)]
    return f"{{{space}{f',{space}'.join(members)}{space}}}"


def document(rnd: random.Random, identity: str | None = None, *, wild: float = 0.5) -> str:
    """A document, perhaps with this ``_id``. ``wild``: how many hold odd things, some of which are not documents."""
    tame = rnd.random() >= wild
    first = [f'"_id": {identity}'] if identity is not None else []
    text = _object(rnd, rnd.randrange(4), rnd.choice(("", " ")), first, tame=tame)
    how = 1.0 if tame else rnd.random()
    if how < 0.03:
        deep = rnd.choice((30, 62, 63, 64, 65, 100, 2000))
        inner = ("[" * deep + "]" * deep) if rnd.random() < 0.5 else '{"a":' * deep + "1" + "}" * deep
        return f'{{"d":{inner}}}'
    if how < 0.05:
        many = [f'"{rnd.choice(("k", "key number "))}{i}":{i}' for i in range(rnd.choice((63, 200, 511, 512, 513)))]
        return "{" + ",".join(many) + rnd.choice(("", ',"k0":1')) + "}"
    if how < 0.08:
        return rnd.choice((value(rnd), "", " ", text + " ", "\n" + text, text + text, "[" + text + "]", text + "\x00"))
    if how < 0.2:
        at = rnd.randrange(len(text))
        odd = ("", rnd.choice('{}[]",:\\$ 0.eE-\x00é'), text[at : at + 3] * 2)
        return text[:at] + rnd.choice(odd) + text[at + rnd.randrange(4) :]
    return text[: rnd.randrange(len(text))] if how < 0.22 else text


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
NUMBERS = ("int", "long", "double", "decimal")
"""Keys that a text column takes as typed ones only."""
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
    kind = {"Int64": "int", "UUID": "binary", "FixedString(24)": "oid"}.get(key.type) or rnd.choice(list(IDS))
    policy = policy_of(
        out_of_range=rnd.choice(("fail", "fail", "clamp", "null")),
        document_keys="typed" if rnd.random() < (0.9 if kind in NUMBERS else 0.1) else "plain",
        document_columns=tuple(pair for pair in paths if pair[0] in named) if rnd.random() < 0.3 else (),
        tombstones=rnd.choice(("auto", "ignore")),
    )
    groups = []
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
