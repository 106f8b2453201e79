"""Draws schemas and payloads of up to a megabyte that want to cost time and memory: deep, wide, long, repeated.

A draw is a function of its number. Sizes are drawn by their logarithm, so that most texts are short beside one that is
not: what costs more than linear time shows itself by one part of the record.
"""

import base64
import json
import random
from collections.abc import Callable, Iterable
from typing import Any

from ch_sink.types.column import Column

MOST = 1_000_000
"""Bytes of a value."""
_TYPES = (
    "String", "Decimal(38, 9)", "Decimal(76, 30)", "Int64", "UInt64", "UInt8", "Int256", "Float64", "Float32", "Bool",
    "Date32", "DateTime64(6, 'UTC')", "UUID", "IPv6", "FixedString(9)", "Enum8('a' = 1)", "JSON", "Time64(6)",
)  # fmt: skip
COLUMNS = (
    Column("id", "Int64"),
    *(Column(f"c{i}", f"Nullable({kind})") for i, kind in enumerate(_TYPES)),
    Column("a0", "Array(Nullable(Decimal(20, 2)))"),
    Column("a1", "Array(Array(Nullable(String)))"),
    Column("m0", "Map(String, Nullable(String))"),
    Column("t0", "Tuple(x Nullable(Int64), y Nullable(String))"),
    Column("p0", "Point"),
)
NAMES = [column.name for column in COLUMNS]
_CONNECT, _DEBEZIUM = "org.apache.kafka.connect.data.", "io.debezium."
_SEMANTIC = (
    _CONNECT + "Decimal", _CONNECT + "Timestamp", _CONNECT + "Date", _DEBEZIUM + "data.Bits", _DEBEZIUM + "data.Json",
    _DEBEZIUM + "data.VariableScaleDecimal", _DEBEZIUM + "data.Uuid", _DEBEZIUM + "data.EnumSet",
    _DEBEZIUM + "data.geometry.Point", _DEBEZIUM + "data.geometry.Geometry", _DEBEZIUM + "time.Date",
    _DEBEZIUM + "time.MicroTime", _DEBEZIUM + "time.NanoTimestamp", _DEBEZIUM + "time.ZonedTimestamp",
    _DEBEZIUM + "time.Interval", _DEBEZIUM + "time.IsoDate", _DEBEZIUM + "time.Year", None,
)  # fmt: skip
_KINDS = ("int8", "int16", "int32", "int64", "float", "double", "boolean", "string", "bytes", "array", "map", "struct")
_COUNTS = (
    "0",
    "-1",
    "9",
    "-1000",
    "1000",
    "16383",
    "4000000",
    "-1000000",
    "1000000000",
    "2147483647",
    "9" * 30,
    "x",
    "",
)
_CONNECTORS = ("mysql", "mariadb", "postgresql", "sqlserver", "oracle", "db2", "mongodb", "singlestore", "other", "")
_POSITIONS = (
    "file", "pos", "row", "lsn", "sequence", "commit_lsn", "change_lsn", "event_serial_no", "scn", "commit_scn",
    "rs_id", "ssn", "lcr_position", "ord", "collection", "partitionId", "offsets", "ts_ms", "snapshot", "db", "name",
)  # fmt: skip
_NUMBERS = (
    "0", "-0", "1e400", "-1e400", "1e-400", "1e16383", "1e-16383", "1e199999", "1e-199999", "1e999999999",
    "9223372036854775807", "-9223372036854775808", "18446744073709551616", "9223372036825200000", "253402300800000000",
    "0.1", "-1.5e-7", "1e19", "99999999999999999999999999999999999999999",
)  # fmt: skip
_PIECES = (
    " ", "0", "9", "a", "A", "=", "\\u0041", "\\\\", "\\\"", "[", "{", "(", ".", ":", "-", ",", "a.", "1,",
    "é", "\\ud83d\\ude00", "%", "{\\\"a\\\":", "[[", "\\t", "0.", "1e", "_",
)  # fmt: skip
_STARTS = (
    "", "[", "[\\\"1", "0x", "1e", "-", "2024-01-01T00:00:00", "2024-01-01", "12:00:00.", "{", "[", "\\u0000",
    "P1Y", "00000000-0000-", "::", "1.", "__debezium_unavailable_value", "+",
)  # fmt: skip


def length(rng: random.Random, most: int = MOST) -> int:
    """One of all magnitudes."""
    return int(most ** rng.random())


def _text(rng: random.Random, room: int) -> str:
    """A JSON text: a start, a piece many times, perhaps an end that does not belong to it."""
    piece = rng.choice(_PIECES)
    many = piece * max(length(rng, max(room, 2)) // len(piece.encode()), 1)
    return f'"{rng.choice(_STARTS)}{many}{rng.choice(("", "x", "]", "Z", "=="))}"'


def _object(members: Iterable[str]) -> str:
    return "{" + ",".join(members) + "}"


def _number(rng: random.Random, room: int) -> str:
    n = length(rng, max(room, 2))
    return rng.choice(
        (
            lambda: rng.choice(_NUMBERS),
            lambda: rng.choice("19") + rng.choice("09") * n,
            lambda: "0." + rng.choice("0139") * n,
            lambda: "1" + "0" * n + "." + "0" * (n // 2) + rng.choice(("", "1")),
            lambda: f"-{'7' * (n // 2)}.{'3' * (n // 2)}e{rng.choice(('-', ''))}{rng.randrange(200_000)}",
        )
    )()


def _wrapped(rng: random.Random, room: int) -> str:
    """A value of Extended JSON, or one of Connect's structs."""
    inner = rng.choice((_text, _number))(rng, room)
    encoded = base64.b64encode(rng.choice((b"\xff", b"\0", b"\x7f", b"\x01")) * length(rng, max(room // 2, 2))).decode()
    return rng.choice(
        (
            f'{{"scale":{rng.choice(_COUNTS[:-3])},"value":"{encoded}"}}',
            f'{{"$numberDecimal":{inner}}}',
            f'{{"$numberLong":{inner}}}',
            f'{{"$numberDouble":{inner}}}',
            f'{{"$date":{inner}}}',
            f'{{"$date":{{"$numberLong":{inner}}}}}',
            f'{{"$oid":{inner}}}',
            f'{{"$uuid":{inner}}}',
            f'{{"$binary":{{"base64":"{encoded}","subType":"00"}}}}',
            f'{{"$regularExpression":{{"pattern":{inner},"options":{inner}}}}}',
            f'{{"$timestamp":{{"t":{inner},"i":1}}}}',
            f'{{"wkb":"{encoded}","x":1.5,"y":2,"srid":{inner}}}',
            f'"{encoded}"',
        )
    )


def _literal(rng: random.Random, room: int, depth: int = 0) -> str:
    """JSON of any kind, of up to about so many bytes."""
    what = rng.randrange(9) if depth < 3 else rng.randrange(4)
    if what < 2:
        return _text(rng, room)
    if what == 2:
        return _number(rng, room)
    if what == 3:
        return _wrapped(rng, room)
    if what == 4:  # deep
        start, end = rng.choice(
            (("[", "]"), ('{"a":', "}"), ('[{"a":', "}]"), ('{"$code":"","$scope":', "}"), ("[0,", "]"))
        )
        times = length(rng, max(room // (len(start) + len(end)), 2))
        return start * times + rng.choice(("1", '""', "null", _number(rng, 9))) + end * times
    if what == 5:  # wide
        item = _literal(rng, rng.choice((4, 40, room // 8)), depth + 1)
        times = max(length(rng, max(room, 2)) // (len(item) + 1), 1)
        return f"[{','.join([item] * times)}]"
    if what == 6:  # many keys
        item = _literal(rng, rng.choice((4, 40)), depth + 1)
        key: Callable[[int], str] = rng.choice(
            (
                lambda i: f"k{i}",
                lambda i: "k",
                lambda i: f"a.{i}",
                lambda i: "a." * (i % 90) + str(i),
                lambda i: f"a.{999_999 - i}",
                lambda i: f"a{i}.999999",
                lambda i: f"${i}",
            )
        )
        times = max(length(rng, max(room, 2)) // (len(item) + 9), 1)
        return _object(f'"{key(i)}":{item}' for i in range(times))
    if what == 7:  # deep with many at the bottom, and long names on the way
        name = "n" * length(rng, max(room // 200, 2))
        times = length(rng, 150)
        bottom = ",".join(f'"{i}":1' for i in range(length(rng, max(room // 20, 2))))
        return f'{{"{name}":' * times + f"{{{bottom}}}" + "}" * times
    return rng.choice(("null", "true", '""', "[]", "{}", "[[]]", "-"))


def _row(rng: random.Random, room: int) -> str:
    """A row image: some columns with a hostile value, or many unknown or repeated ones."""
    names = rng.sample(NAMES[1:], rng.choice((1, 1, 2, 5)))
    parts = ['"id":1', *(f'"{name}":{_literal(rng, room // len(names))}' for name in names)]
    if rng.random() < 0.2:
        more = length(rng, room // 20)
        name, apart = rng.choice(("u", "u", "c0")), rng.random() < 0.7
        parts += [f'"{name}{i if apart else 0}":{i}' for i in range(more)]
    return _object(parts)


def _block(rng: random.Random, room: int) -> str:
    """The source block."""
    fields = [f'"connector":"{rng.choice(_CONNECTORS)}"', '"name":"s"', '"ts_ms":1']
    if rng.random() < 0.5:
        for name in rng.sample(_POSITIONS, rng.choice((1, 2, 6))):
            fields += [f'"{name}":{_literal(rng, room if rng.random() < 0.5 else 60, 2)}']
    return _object(fields)


def _event(rng: random.Random, row: str, before: str = "null", room: int = 100_000) -> str:
    op = rng.choice(("c", "u", "r", "d", "t", "m", "x" * 99_999)) if rng.random() < 0.2 else "c"
    return f'{{"before":{before},"after":{row},"source":{_block(rng, room)},"op":"{op}"}}'


def plain(rng: random.Random) -> bytes:
    """JSON without a schema: an event, or a flattened row."""
    room = length(rng)
    row = _row(rng, room)
    if rng.random() < 0.2:
        return row.encode()
    before = _row(rng, room // 3) if rng.random() < 0.3 else "null"
    return _event(rng, row, before).encode()


def _type(rng: random.Random, field: str | None, depth: int = 0) -> dict[str, Any]:
    """A type of a schema envelope, with its numbers out of all bounds."""
    name = rng.choice(_SEMANTIC)
    kind = (
        rng.choice(_KINDS)
        if rng.random() < 0.4
        else "bytes"
        if name and name.endswith(("Decimal", "Bits"))
        else "string"
    )
    made: dict[str, Any] = {"type": kind, "optional": rng.random() < 0.8}
    if field is not None:
        made["field"] = field
    if name is not None:
        made["name"] = name
        made["parameters"] = {
            p: rng.choice(_COUNTS) for p in ("scale", "length", "connect.decimal.precision") if rng.random() < 0.7
        }
    if rng.random() < 0.2:
        made["default"] = rng.choice((0, "A" * length(rng, 100_000), [0] * 1000, {"a": 1}, "1e" + "9" * 1000))
    if rng.random() < 0.2:
        for attribute in ("type", "length", "scale"):
            made.setdefault("parameters", {})[f"__debezium.source.column.{attribute}"] = rng.choice(
                (*_COUNTS, "DECIMAL", "NUMBER", "BIT VARYING", "BIGINT UNSIGNED", " " * 10_000)
            )
    if depth < 4 and kind in ("array", "map"):
        made["items" if kind == "array" else "values"] = _type(rng, None, depth + 1)
        made["keys"] = {"type": "string"}
    if depth < 4 and kind == "struct":
        made["fields"] = [_type(rng, f"f{i}", depth + 1) for i in range(length(rng, 40))]
    return made


def declared(rng: random.Random) -> bytes:
    """JSON with its schema: many fields, deep ones, huge numbers in it."""
    room = length(rng)
    fields = [
        {"type": "int64", "field": "id"},
        *(_type(rng, name) for name in rng.sample(NAMES[1:], rng.choice((1, 3, 9)))),
    ]
    if rng.random() < 0.3:
        fields += [_type(rng, f"u{i}", 3) for i in range(length(rng, 4_000))]
    if rng.random() < 0.1:
        deep: dict[str, Any] = {"type": "string"}
        for _ in range(length(rng, 400)):
            deep = {
                "type": rng.choice(("array", "struct")),
                "items": deep,
                "fields": [{**deep, "field": "f"}][: rng.randrange(2)],
            }
            if len(json.dumps(deep)) > MOST // 4:
                break
        fields.append({**deep, "field": "deep"})
    image = {"type": "struct", "optional": True, "fields": fields}
    schema = {"type": "struct", "fields": [{**image, "field": "before"}, {**image, "field": "after"}]}
    text = json.dumps(schema, separators=(",", ":"))
    names = [field["field"] for field in fields[1:6]]
    share = max((MOST - len(text)) // 4, 10)
    row = _object(['"id":1', *(f'"{name}":{_literal(rng, min(room, share))}' for name in names)])
    return f'{{"schema":{text},"payload":{_event(rng, row)}}}'.encode()


def documents(rng: random.Random) -> bytes:
    """Events of documents, in any dialect of Extended JSON."""
    room = length(rng, MOST // 3)

    def document(share: int) -> str:
        fields = [f'"f{i}":{_literal(rng, share)}' for i in range(rng.choice((1, 2, 4)))]
        return _object(['"_id":1', '"a":[]', *fields])

    text = document(room)
    fields: dict[str, str] = {"after": json.dumps(text), "before": "null"}
    what = rng.random()
    if what < 0.4:
        updated = document(room)
        if rng.random() < 0.5:
            updated = _object(f'"{_path(rng, i)}":{i}' for i in range(length(rng, 20_000)))
        cuts = [{"field": rng.choice(("a", "f0")), "newSize": i} for i in range(length(rng, 8_000))]
        gone = [_path(rng, i) for i in range(length(rng, 20_000))]
        fields = {
            "before": json.dumps(text) if rng.random() < 0.6 else "null",
            "after": "null",
            "updateDescription": json.dumps(
                {"updatedFields": updated, "truncatedArrays": cuts[::-1], "removedFields": gone}
            ),
        }
    elif what < 0.6:
        body = ['"d":{"f0":false}', f'"u":{document(room)}']
        body += [f'"sf{i}":{{"u":{{"a":1}}}}' for i in range(length(rng, 5_000))]
        diff = f'{{"$v":2,"diff":{_object(body)}}}'
        patch = rng.choice((diff, f'{{"$set":{document(room)}}}', document(room)))
        fields = {"after": "null", "patch": json.dumps(patch), "filter": json.dumps('{"_id":1}')}
    block = '{"connector":"mongodb","name":"s","ts_ms":1,"collection":"c","db":"d","ord":1}'
    parts = ",".join(f'"{name}":{value}' for name, value in fields.items())
    op = "u" if "updateDescription" in fields or "patch" in fields else "c"
    return f'{{{parts},"source":{block},"op":"{op}"}}'.encode()


def _path(rng: random.Random, i: int) -> str:
    return rng.choice(
        (f"a.{999_999 - i}", f"f{i}", f"f{i}.b.999999", "a." * length(rng, 40) + str(i), f"f0.{i}", "f1.x")
    )


def bare(rng: random.Random) -> bytes:
    """Bytes that are repeated, whatever they are."""
    start = rng.choice((b"", b"\0", b"\0\0\0\0\1", b'{"schema":', b'{"op":"c","after":', b"Struct{", b'{"id":'))
    piece = rng.choice(
        (b" ", b"[", b"{", b'{"a":', b'"', b"\\", b"\0", b"\xff", b"1", b"null,", b'{"schema":', b"\xef\xbb\xbf")
    )
    return start + piece * (length(rng) // len(piece))


def mutated(rng: random.Random, recorded: bytes) -> bytes:
    """A recorded JSON value of which some leaves are hostile."""
    try:
        tree = json.loads(recorded)
    except ValueError:
        at = rng.randrange(len(recorded) + 1)
        return recorded[:at] + recorded[at : at + 9] * length(rng, 100_000) + recorded[at:]
    marks: dict[str, str] = {}

    def leaf(room: int) -> str:
        mark = f"@{len(marks)}@"
        marks[json.dumps(mark)] = _literal(rng, room)
        return mark

    for _ in range(rng.choice((1, 1, 2, 3))):
        here: Any = tree
        while True:
            keys = list(here) if isinstance(here, dict) else list(range(len(here)))
            if not keys:
                break
            key = rng.choice(keys)
            if isinstance(here[key], (dict, list)) and here[key] and rng.random() < 0.9:
                here = here[key]
                continue
            here[key] = leaf(length(rng, MOST // 4))
            break
    text = json.dumps(tree)
    for mark, value in marks.items():
        text = text.replace(mark, value)
    return text.encode()
