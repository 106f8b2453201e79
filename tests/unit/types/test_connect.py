"""Schemas in column comments, and what the propagated type of a column adds to them."""

import json
from dataclasses import replace
from typing import Any

import pytest

from ch_sink.decode import Decoder
from ch_sink.discovery.sample import sample_schema
from ch_sink.errors import DecodeError, TableError
from ch_sink.model.change import Records
from ch_sink.model.policy import policy_of
from ch_sink.table.evolve import filled
from ch_sink.types import OutOfRange, clickhouse_type, converter
from ch_sink.types.build import default_sql
from ch_sink.types.column import Column, ValuePolicy
from ch_sink.types.connect import SourceType, of_system, parse_connect_schema, propagated_type
from tests.support.decoding import listed, replacing
from tests.support.event import chunk_of
from tests.unit.types.columns import INT, make


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "int64", "name": "io.debezium.time.MicroTimestamp", "optional": True},
        {
            "type": "bytes",
            "name": "org.apache.kafka.connect.data.Decimal",
            "parameters": {"scale": "2", "connect.decimal.precision": "9"},
        },
        {"type": "string", "name": "io.debezium.data.Enum", "parameters": {"allowed": "a{,b\\, c 'é\""}},
        {"type": "array", "items": {"type": "float", "optional": True}, "optional": True},
        {
            "type": "map",
            "keys": {"type": "string"},
            "values": {"type": "struct", "fields": [{"field": "a b", "type": "double"}]},
        },
        {"type": "string", "name": "a name with spaces"},
    ],
)
def test_column_comment_round_trips(schema: dict[str, Any]) -> None:
    source = parse_connect_schema(schema)
    assert SourceType.from_comment(source.to_comment()) == source
    assert SourceType.from_comment("customer's own words; " + source.to_comment()) == source
    assert "\n" not in source.to_comment()


@pytest.mark.parametrize("text", ["", "plain", "debezium: ", "debezium: what", "debezium: int64 {", "debezium: a b c"])
def test_other_comments_tell_nothing(text: str) -> None:
    assert SourceType.from_comment(text) is None


def test_a_row_version_is_a_big_endian_integer_where_the_source_says_so() -> None:
    told = SourceType("bytes", parameters=(("__debezium.source.column.type", "rowversion"),))
    assert make(told, "UInt64").convert([bytes.fromhex("00000000000007d1"), None]).array.to_pylist() == [2001, None]
    assert make(told, "String").convert([b"\x00"]).array.to_pylist() == [b"\x00"]
    with pytest.raises(TableError):
        make(SourceType("bytes"), "UInt64")


def test_a_negative_number_is_an_unsigned_one_unless_the_source_says_signed() -> None:
    assert make(INT, "UInt64").convert([-1]).array.to_pylist() == [2**64 - 1]
    signed = SourceType("int64", parameters=(("__debezium.source.column.type", "BIGINT"),))
    with pytest.raises(OutOfRange):
        make(signed, "UInt64").convert([-1])


@pytest.mark.parametrize(("mode", "text"), [("hex", "00FF41"), ("base64", "AP9B"), ("base64-url-safe", "AP9B")])
def test_a_binary_column_sent_as_text_is_bytes_where_its_type_is_propagated(mode: Any, text: str) -> None:
    source = SourceType("string", parameters=(("__debezium.source.column.type", "VARBINARY"),))
    column = Column("x", "String")
    made = converter(source, column, encoding="json", policy=ValuePolicy(binary_handling=mode))
    assert made.convert([text, None]).array.to_pylist() == [b"\x00\xffA", None]
    as_sent = converter(source, column, encoding="json", policy=ValuePolicy())
    assert as_sent.convert([text]).array.to_pylist() == [text.encode()]
    with pytest.raises(DecodeError, match=mode):
        made.convert(["AA==", "not it!"])
    other = converter(SourceType("string"), column, encoding="json", policy=ValuePolicy(binary_handling=mode))
    assert other.convert([text]).array.to_pylist() == [text.encode()]


@pytest.mark.parametrize(
    ("length", "more", "shown"),
    [
        ("70", (), b"0" * 67 + b"101"),
        ("70", (("__debezium.source.column.type", "VARBIT"),), b"101"),
        ("2147483647", (), b"101"),
    ],
    ids=["BIT(70)", "VARBIT(70), told", "VARBIT"],
)
def test_bit_strings_are_as_long_as_is_known(length: str, more: Any, shown: bytes) -> None:
    """PostgreSQL's driver says 2**31 - 1 where there is no limit: nobody wants as many zeros."""
    source = SourceType("bytes", "io.debezium.data.Bits", (("length", length), *more))
    assert clickhouse_type(source) == "Nullable(String)"
    assert make(source, "Nullable(String)").convert([b"\x05", None]).array.to_pylist() == [shown, None]


@pytest.mark.parametrize(
    ("more", "column_type"),
    [((), "Nullable(String)"), ((("__debezium.source.column.scale", "0"),), "Nullable(Decimal(38, 0))")],
    ids=["NUMBER", "NUMBER(38)"],
)
def test_a_number_without_a_scale_holds_any(more: Any, column_type: str) -> None:
    """Oracle's connector tells 38 digits for a plain NUMBER, and no scale; its values may be 1.5."""
    told = (("__debezium.source.column.type", "NUMBER"), ("__debezium.source.column.length", "38"), *more)
    assert clickhouse_type(SourceType("string", parameters=told)) == column_type


_MARK = "__debezium.source.column."


def _records(connector: str, form: str, field: dict[str, Any], *values: Any) -> Records:
    """Rows with a column ``x`` whose connector propagates its type, as events or flattened."""
    row = [{"field": "id", "type": "int64"}, {"field": "x", "optional": True, **field}]
    block = {"connector": connector, "name": "s", "ts_ms": 1, "lsn": 7, "snapshot": "false"}
    out = []
    for i, value in enumerate(values):
        image = {"id": i, "x": value}
        if form == "events":
            schema = {"type": "struct", "fields": [{"field": "after", "type": "struct", "fields": row}]}
            payload: dict[str, Any] = {"before": None, "after": image, "source": block, "op": "c"}
        else:
            more = [{"field": "__connector", "type": "string", "optional": True}] if form == "named rows" else []
            schema = {"type": "struct", "name": "s.public.t.Value", "fields": [*row, *more]}
            payload = image | ({"__connector": connector} if more else {})
        out.append(json.dumps({"schema": schema, "payload": payload}, separators=(",", ":")).encode())
    n = len(values)
    keys = [json.dumps({"id": i}).encode() for i in range(n)]
    return chunk_of(keys, out)


@pytest.mark.parametrize("form", ["events", "named rows"])
@pytest.mark.parametrize(
    ("connector", "name", "field", "column", "values"),
    [
        ("postgresql", "year", {"type": "int32"}, "Int32", [-5, 70_000]),
        ("sqlserver", "year", {"type": "int32"}, "Int32", [-5, 70_000]),
        ("postgresql", "serial", {"type": "int32"}, "Int32", [-5]),
        ("postgresql", "int unsigned", {"type": "int32"}, "Int32", [-5]),
        ("postgresql", "number", {"type": "string", "length": 20, "scale": 0}, "String", ["n/a"]),
        ("postgresql", "money", {"type": "string", "length": 20, "scale": 2}, "String", ["n/a"]),
        ("postgresql", "uuid", {"type": "string"}, "String", ["n/a"]),
        ("postgresql", "uniqueidentifier", {"type": "string"}, "String", ["n/a"]),
        ("db2", "uuid", {"type": "string"}, "String", ["n/a"]),
        ("postgresql", "image", {"type": "string"}, "String", ["zz"]),
        ("postgresql", "photo_blob", {"type": "string"}, "String", ["zz"]),
        *(
            ("postgresql", name, {"type": kind}, column, [value])
            for name in ("bit", "json", "set", "enum", "datetime", "timestamp", "date", "tinyint", "datetime2")
            for kind, column, value in (("int32", "Int32", -5), ("string", "String", "zz"))
        ),
    ],
)
def test_the_name_of_a_domain_selects_no_rule_of_another_system(
    form: str, connector: str, name: str, field: dict[str, Any], column: str, values: list[Any]
) -> None:
    """The column has the type that the values themselves have, and takes all of them."""
    told = {_MARK + "type": name.upper()}
    told |= {_MARK + part: str(field[part]) for part in ("length", "scale") if part in field}
    _expect_plain(_records(connector, form, {"type": field["type"], "parameters": told}, *values), column, values)


def test_rows_that_name_no_connector_have_a_domain_s_values_too() -> None:
    field = {"type": "int32", "parameters": {_MARK + "type": "YEAR"}}
    _expect_plain(_records("postgresql", "rows", field, -5, 70_000), "Int32", [-5, 70_000])


def _expect_plain(events: Records, column: str, values: list[Any]) -> None:
    found = sample_schema(events)
    chosen = clickhouse_type(found.fields[1].type)
    assert chosen == f"Nullable({column})"
    policy = replace(policy_of(), values=ValuePolicy(binary_handling="hex"))
    table = replacing((Column("id", "Int64"), Column("x", chosen, comment=found.fields[1].type.to_comment())), ("id",))
    batch = Decoder(table, policy).decode(events)
    assert not batch.bad, batch.bad[0].reason
    assert not batch.unknown
    wanted = [v.encode() if isinstance(v, str) else v for v in values]
    assert batch.after["x"].to_pylist() == wanted


@pytest.mark.parametrize(
    ("connector", "name", "field", "column"),
    [
        ("mysql", "BIGINT UNSIGNED", {"type": "int64"}, "UInt64"),
        ("mariadb", "UUID", {"type": "string"}, "UUID"),
        ("mysql", "YEAR", {"type": "int32"}, "UInt16"),
        ("sqlserver", "uniqueidentifier", {"type": "string"}, "UUID"),
        ("sqlserver", "money", {"type": "string", "length": 19, "scale": 4}, "Decimal(19, 4)"),
        ("postgresql", "NUMERIC", {"type": "string", "length": 10, "scale": 2}, "Decimal(10, 2)"),
        ("oracle", "NUMBER", {"type": "string", "length": 9, "scale": 2}, "Decimal(9, 2)"),
        ("db2", "DECIMAL", {"type": "string", "length": 9, "scale": 2}, "Decimal(9, 2)"),
    ],
)
def test_a_name_of_the_system_s_own_selects_its_rule(
    connector: str, name: str, field: dict[str, Any], column: str
) -> None:
    told = {_MARK + "type": name} | {_MARK + part: str(field[part]) for part in ("length", "scale") if part in field}
    found = sample_schema(_records(connector, "events", {"type": field["type"], "parameters": told}, None))
    assert clickhouse_type(found.fields[1].type) == f"Nullable({column})"


def test_a_key_in_a_domain_is_read_as_what_it_is() -> None:
    """Its own schema names no connector: the rows do."""
    field = {"type": "string", "parameters": {_MARK + "type": "BINARY"}}
    events = _records("postgresql", "events", field, "zz")
    schema = {"type": "struct", "fields": [{"field": "x", **field}]}
    keyed = replace(events, keys=[json.dumps({"schema": schema, "payload": {"x": "zz"}}).encode()])
    table = replacing((Column("id", "Int64"), Column("x", "String")), ("x",))
    policy = replace(policy_of(), values=ValuePolicy(binary_handling="hex"))
    batch = Decoder(table, policy).decode(keyed)
    assert not batch.bad, batch.bad[0].reason
    assert listed(batch.key) == [{"x": b"zz"}]


@pytest.mark.parametrize("text", [" ", "\t\n", "²", "--1", "9" * 5000, ""])
def test_a_declaration_that_says_nothing_is_none(text: str) -> None:
    mark = "__debezium.source.column."
    found = propagated_type(SourceType("string", None, ((mark + "type", text), (mark + "length", text))))
    assert found.length is None
    assert not found.decimal


def test_a_nullable_column_of_sql_server_has_no_default_for_rows_that_were_there_before() -> None:
    """ALTER TABLE … ADD n INT NULL DEFAULT 5 leaves NULL in them; elsewhere, and if it is NOT NULL, they get 5."""
    fields = {
        "nullable": SourceType("int32", optional=True, default=5, has_default=True),
        "needed": SourceType("int32", optional=False, default=5, has_default=True),
    }
    for connector in ("sqlserver", "flattened:sqlserver"):
        found = of_system(fields, connector)
        assert (found["nullable"].has_default, found["needed"].default) == (False, 5)
    assert of_system(fields, "postgresql") == of_system(fields, "") == fields


@pytest.mark.parametrize(
    ("connector", "kind", "default", "is_taken"),
    [
        ("oracle", "string", "USER", False),
        ("flattened:oracle", "string", "SYS_CONTEXT('USERENV','SESSION_USER')", False),
        ("oracle", "int32", 5, True),
        ("sqlserver", "string", "", False),  # SUSER_SNAME(), NEWID()
        ("sqlserver", "boolean", False, False),  # CAST(1 AS bit)
        ("sqlserver", "int32", 5, True),
        ("postgresql", "string", "USER", True),
        ("mysql", "string", "f(x)", True),
    ],
)
def test_of_some_systems_an_expression_is_stated_as_a_value(
    connector: str, kind: str, default: object, is_taken: bool
) -> None:
    fields = {"v": SourceType(kind, optional=False, default=default, has_default=True)}
    stated = of_system(fields, connector)["v"]
    assert filled(stated, default_sql(stated, clickhouse_type(stated))) is is_taken
