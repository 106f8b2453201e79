"""Input that no connector sends: a clear reason, or the right value, and its neighbours are applied."""

import json
from dataclasses import dataclass
from typing import Any

import pytest

from ch_sink.decode import Decoder
from ch_sink.memory import MemoryHandover, MemoryPending
from ch_sink.model.change import ChangeBatch, Headers, Records, Skipped
from ch_sink.model.policy import policy_of
from ch_sink.order import State
from ch_sink.pipeline.chunks import Chunk
from ch_sink.pipeline.partition_sink import Attempt, Stores, open_sink
from ch_sink.pipeline.plans import Ports, StreamName
from ch_sink.pipeline.target import Target
from ch_sink.types.column import Column
from tests.support.decoding import replacing
from tests.support.event import chunk_of, event, row
from tests.support.memory_stream import MemoryDeadLetters
from tests.support.memory_table import MemoryTable

COLUMNS = (Column("id", "Int64"), Column("v", "Nullable(String)"), Column("n", "Nullable(Decimal(38, 0))"))
TABLE = replacing(COLUMNS, ("id",))
KEY = b'{"id":2}'


def image(**fields: Any) -> dict[str, Any]:
    return {**row(2), "n": None, **fields}


def raw(after: str) -> bytes:
    """An event whose after image is this text, whatever it is."""
    return event("c", {"id": 2}).replace(b'{"id": 2}', after.encode("utf-8", "surrogatepass"))


@dataclass(frozen=True)
class Input:
    """What comes, and what becomes of it: ``value`` of column ``v`` (or the row), or a reason."""

    name: str
    value: bytes | None
    becomes: Any = None
    reason: str = ""
    key: bytes | None = KEY
    headers: Headers | None = None
    skipped: Skipped | None = None


ROW = b'{"id":2,"v":"x","n":null}'
HUGE = "x" * 15_000_000
INPUTS = [
    Input("unknown operation", event("q", image()), reason="unknown operation 'q'"),
    Input("operation that is a number", event("c", image()).replace(b'"c"', b"7"), reason="Expected `str`, got `int`"),
    Input(
        "a connector that no table can follow",
        event("c", image()).replace(b'"mysql"', b'"cassandra"'),
        reason="events of the connector 'cassandra' cannot be applied to a table",
    ),
    Input("a document of 15 MB", event("c", image(v=HUGE)), becomes=HUGE.encode()),
    Input("invalid UTF-8 in a text", event("c", image(v="@")).replace(b"@", b"\xff\xfe"), reason="utf-8"),
    Input(
        "invalid UTF-8 in a field that the table lacks",
        raw('{"id":2,"v":"x","n":null,"w":"@"}').replace(b"@", b"\xb3"),
        becomes=b"x",
    ),
    Input("invalid UTF-8 without an operation", b'{"before":null,"after":{"id":2,"v":"\xb3"}}', reason="utf-8"),
    Input(
        "invalid UTF-8 in the connector's name",
        b'{"id":2,"v":"x","n":null,"__op":"c","__connector":"\xb3"}',
        reason="utf-8",
    ),
    Input("invalid UTF-8 in a field's name", event("c", image()).replace(b'"v"', b'"\xff"'), reason="utf-8"),
    Input("invalid UTF-8 in the key", event("c", image()), reason="key", key=b'{"id":"\xff"}'),
    Input("invalid UTF-8 in a header", event("c", image()), becomes=b"x", headers=[("__debezium.oldkey", b"\xff")]),
    Input(
        "invalid UTF-8 in a header that tells",
        b'{"id":2,"v":"x","n":null}',
        reason="UTF-8",
        headers=[("__op", b"\xff")],
    ),
    Input("100 000 levels of arrays", raw('{"id":2,"v":' + "[" * 100_000 + "]" * 100_000 + "}"), reason="nested"),
    Input("100 000 levels of objects", b'{"a":' * 100_000 + b"1" + b"}" * 100_000, reason="nested"),
    Input("100 000 levels in the key", event("c", image()), reason="", key=b"[" * 100_000),
    Input("a field twice", raw('{"id":2,"v":"a","n":null,"v":"b"}'), becomes=b"b"),
    Input("10 000 digits", raw('{"id":2,"v":null,"n":' + "9" * 10_000 + "}"), reason="'n'"),
    Input("10 000 digits for an integer", raw('{"id":' + "9" * 10_000 + ',"v":null,"n":null}'), reason="id"),
    Input("an exponent without end", raw('{"id":2,"v":null,"n":1e999999999}'), reason="'n'"),
    Input("a lone surrogate, escaped", raw(r'{"id":2,"v":"\ud800","n":null}'), reason="hex escape"),
    Input("a lone surrogate, raw", raw('{"id":2,"v":"\ud800","n":null}'), reason="utf-8"),
    Input("NUL in a text", event("c", image(v="a\0b")), becomes=b"a\0b"),
    Input("a control character, raw", raw('{"id":2,"v":"a\nb","n":null}'), reason="invalid character"),
    Input("an empty value", b"", reason="JSON"),
    Input("the text null", b"null", skipped=Skipped.TOMBSTONE),
    Input("a null value", None, skipped=Skipped.TOMBSTONE),
    Input("an array", b"[1,2]", reason="Expected `object`, got `array`"),
    Input("a text", b'"c"', reason="Expected `object`, got `str`"),
    Input("a number", b"7", reason="Expected `object`, got `int`"),
    Input("a byte order mark", b"\xef\xbb\xbf" + event("c", image()), reason="JSON"),
    Input("UTF-16", event("c", image()).decode().encode("utf-16"), reason="JSON"),
    Input("white space around", b" \r\n\t" + event("c", image()) + b"\n ", becomes=b"x"),
    Input("something behind the event", event("c", image()) + b"{}", reason="trailing"),
    Input("half an event", event("c", image())[:-9], reason="JSON"),
    Input("Confluent framing without a registry", b"\0\0\0\0\7abc", reason="registry"),
    Input(
        "an after image that is a text",
        event("u", image()).replace(json.dumps(image()).encode(), b'"x"'),
        reason="got `str`",
    ),
    Input(
        "an envelope without source",
        b'{"op":"c","before":null,"after":{"id":2,"v":"x","n":null}}',
        reason="source block",
    ),
    Input("a schema that is none", b'{"schema":7,"payload":{}}', reason="schema envelope"),
    Input("a schema without end", b'{"schema":{"type":"struct","fields":[', reason="schema envelope"),
    Input("an empty key", event("c", image()), reason="key", key=b""),
    Input("a key of another table", event("c", image()), reason="'other'", key=b'{"other":1}'),
]


def chunk(given: Input) -> Records:
    values = [event("c", {**image(), "id": 1}), given.value, event("u", {**image(), "id": 3})]
    keys = [b'{"id":1}', given.key, b'{"id":3}']
    headers: list[Headers | None] = [None, given.headers, None]
    return chunk_of(keys, values, headers)


@pytest.mark.parametrize("given", INPUTS, ids=lambda given: given.name)
def test_it_is_right_or_refused_with_its_reason_and_its_neighbours_land(given: Input) -> None:
    batch: ChangeBatch = Decoder(TABLE, policy_of()).decode(chunk(given))
    bad = {record.index: record.reason for record in batch.bad}
    assert {0, 2} <= set(batch.source_index.tolist())
    assert bad.keys() <= {1}
    if given.skipped is not None:
        assert batch.skipped_counts == {given.skipped: 1}
    elif given.becomes is not None:
        assert not bad
        assert batch.after.column("v").to_pylist()[1] == given.becomes
    else:
        assert given.reason.lower() in bad[1].lower()
        assert len(bad[1]) < 500, "a reason is a sentence, not the record"


def test_all_of_it_at_once_in_the_pipeline_leaves_dead_letters_and_the_good_rows() -> None:
    values: list[bytes | None] = []
    keys: list[bytes | None] = []
    headers: list[Headers | None] = []
    for number, given in enumerate(INPUTS):
        values += [event("c", {**image(), "id": 1000 + number}), given.value]
        keys += [b'{"id":%d}' % (1000 + number), given.key]
        headers += [None, given.headers]
    n = len(values)
    records = chunk_of(keys, values, headers)
    target = Target.of(TABLE, policy_of(evolve="ignore"))
    decoder = Decoder(TABLE, target.policy)
    schema = decoder.decode(records.slice(0, 1)).after.schema
    table, letters = MemoryTable(TABLE, ("id",), schema), MemoryDeadLetters()
    sink = open_sink(
        StreamName("s", "t", "id", 0, 0),
        target,
        lambda want: Decoder(TABLE, target.policy, want_before=want),
        Ports(table, MemoryHandover(), None),
        Stores(table, letters, MemoryPending()),
        Attempt(deadline=1e9),
    )
    done = sink.apply(Chunk(0, n, records), State())
    assert done.end == n
    refused = [given for given in INPUTS if given.becomes is None and given.skipped is None]
    assert done.counts.dead_letters == len(letters.stored) == len(refused)
    assert all(stored.letter.reason for stored in letters.stored.values())
    kept = {current["id"] for current in table.current()}
    assert kept == {2, *(1000 + number for number in range(len(INPUTS)))}


DECIMAL = "org.apache.kafka.connect.data.Decimal"
ODD_FIELDS: list[dict[str, Any]] = [
    {"type": "string"},
    {"type": "string", "field": 7},
    {"type": "string", "field": "w", "name": {"a": 1}},
    {"type": "bytes", "field": "w", "name": DECIMAL, "parameters": {"scale": "x"}},
    {"type": "bytes", "field": "w", "name": DECIMAL, "parameters": {"scale": "9" * 30}},
    {"type": "bytes", "field": "w", "name": DECIMAL, "parameters": {"scale": "3", "connect.decimal.precision": "z"}},
    {"type": "bytes", "field": "w", "name": "io.debezium.data.Bits", "parameters": {"length": "y"}},
    {"type": "bytes", "field": "w", "name": "io.debezium.data.Bits", "parameters": [1]},
]


@pytest.mark.parametrize("odd", ODD_FIELDS)
@pytest.mark.parametrize("column", [True, False])
def test_a_schema_that_no_converter_writes_is_refused_by_itself(odd: dict[str, Any], column: bool) -> None:
    if column and odd.get("field") == "w":
        odd = {**odd, "field": "v"}
    fields = [{"type": "int64", "field": "id"}, odd]
    schema = {"type": "struct", "fields": [{"type": "struct", "field": "after", "fields": fields, "optional": True}]}
    payload = json.loads(event("c", {"id": 2}))
    values = [event("c", {**image(), "id": 1}), json.dumps({"schema": schema, "payload": payload}).encode()]
    records = chunk_of([b'{"id":1}', KEY], values)
    batch = Decoder(TABLE, policy_of()).decode(records)
    assert batch.source_index.tolist() == [0]
    assert [bad.index for bad in batch.bad] == [1]
    assert "schema" in batch.bad[0].reason
    assert not batch.unknown


@pytest.mark.parametrize("name", ["\tid", 'a"b', "a\\b", "line\nbreak", "\x01", "\x1f", '"', "\\", "\\n"])
def test_a_field_whose_name_needs_escapes_is_unknown_in_either_form(name: str) -> None:
    decoder = Decoder(TABLE, policy_of())
    for value in (event("c", image(**{name: 1})), json.dumps(image(**{name: 1})).encode()):
        for _ in range(2):
            values = [event("c", {**image(), "id": 1}), value, event("u", {"id": 3, "v": "x"})]
            keys = [b'{"id":1}', KEY, b'{"id":3}']
            batch = decoder.decode(chunk_of(keys, values))
            assert not batch.bad
            assert batch.source_index.tolist() == [0, 1, 2]
            assert [(u.name, u.first_offset, u.clickhouse_type) for u in batch.unknown] == [
                (name, 1, "Nullable(Int64)")
            ]


def test_a_first_row_may_have_a_number_beyond_those_of_python() -> None:
    batch = Decoder(TABLE, policy_of()).decode(chunk_of([KEY], [raw('{"id":2,"v":[1e400],"n":null}')]))
    assert not batch.bad
    assert batch.after.column("v").to_pylist() == [b"[1E+400]"]
