"""The reader of SQL Server with its real driver, over a server that has the protocol and answers from a script.

No real SQL Server was at hand: these tests have never been run against one.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from struct import pack
from typing import Any

import pytest

from ch_sink.errors import ConfigError, SourceError
from ch_sink.snapshot import DivisibleReader, SourceAddress, open_source
from ch_sink.snapshot.encode import encoded, encoder, source_type
from ch_sink.snapshot.reader import NO_PROOF
from ch_sink.snapshot.sqlserver import SqlServerReader, type_text
from ch_sink.types.column import Column
from ch_sink.types.connect import parse_connect_schema
from tests.support.sqlserver_database import VALUES, Database, Table, Typed
from tests.support.tds_server import TdsServer

DEEP = max(len(typed.values) for typed in VALUES)


def all_types() -> Table:
    """A row for each value, and one with nothing but its key."""
    rows = [[str(n), *(t.values[n][0] if n < len(t.values) else None for t in VALUES)] for n in range(DEEP)]
    return Table({"id": "int", **{t.name: t.declared for t in VALUES}}, [*rows, ["99", *[None] * len(VALUES)]], "id")


@pytest.fixture
def database() -> Database:
    many = Table({"id": "bigint", "odd ]name%s": "nvarchar(20)"}, [[str(n), f"n{n}"] for n in range(-50, 950)], "id")
    return Database({"[dbo].[all types]": all_types(), "[dbo].[many]": many})


@pytest.fixture
def server(database: Database) -> Iterator[TdsServer]:
    with closing(database.serve()) as made:
        yield made


def address(server: TdsServer, table: str, **changes: Any) -> SourceAddress:
    made = SourceAddress("sqlserver", "127.0.0.1", server.port, "shop", "dbo", table, "debezium", server.password)
    return replace(made, **changes)


def opened(server: TdsServer, table: str, **changes: Any) -> "closing[SqlServerReader]":
    reader = open_source(address(server, table, **changes))
    assert isinstance(reader, SqlServerReader)
    assert isinstance(reader, DivisibleReader)
    return closing(reader)


@pytest.mark.parametrize("typed", VALUES, ids=lambda typed: typed.declared)
def test_each_value_is_what_the_connector_sends(server: TdsServer, typed: Typed) -> None:
    with opened(server, "all types") as reader:
        kind = reader.columns()[typed.name]
        values = [row[0] for batch in reader.rows([typed.name], 2) for row in batch]
    encode = encoder(parse_connect_schema(typed.field), kind)
    assert encode is not None
    found = encoded(encode, values)
    wanted = [typed.values[n][1] if n < len(typed.values) else None for n in range(DEEP)] + [None]
    if typed.declared.startswith("datetimeoffset"):
        assert found == ["2018-07-18T07:44:15.1234567Z", "2018-07-18T21:14:15.1000000Z", None]  # the same moments
    elif typed.kind == "float":
        assert [v and pack("<f", v) for v in found] == [v and pack("<f", v) for v in wanted]
    else:
        assert found == wanted


def test_columns_have_the_types_that_one_declares() -> None:
    declared = [
        type_text("decimal", 9, 12, 2, 0), type_text("nvarchar", 40, 0, 0, 0), type_text("varbinary", -1, 0, 0, 0),
        type_text("timestamp", 8, 0, 0, 0), type_text("datetime2", 8, 27, 7, 0), type_text("int", 4, 10, 0, 1),
        type_text("geography", -1, 0, 0, 0),
    ]  # fmt: skip
    assert declared == [
        "decimal(12,2)", "nvarchar(20)", "varbinary(max)", "rowversion", "datetime2(7)", "computed int",
        "clr geography",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("declared", "column"),
    [("computed int", "Int64"), ("clr geography", "String"), ("sql_variant", "String"), ("money", "String"),
     ("datetime2(7)", "String"), ("datetimeoffset(7)", "String"), ("real(24)", "String"), ("bit", "String")],
)  # fmt: skip
def test_what_cannot_be_told_from_the_connectors_value_is_left_out(declared: str, column: str) -> None:
    kind = source_type(Column("c", column))
    assert kind is not None
    assert encoder(kind, declared) is None


def test_seven_digits_reach_a_column_that_has_them_without_a_schema() -> None:
    kind = source_type(Column("c", "DateTime64(7)"))
    assert kind is not None
    encode = encoder(kind, "datetime2(7)")
    assert encode("2018-06-20 15:13:16.9451042") == 1529507596945104200


def test_parts_hold_every_row_once(server: TdsServer) -> None:
    with opened(server, "many") as reader:
        assert reader.estimate() == 1000
        parts = reader.parts(7)
        assert len(parts) == 7
        found = [row for part in parts for batch in reader.part(part, ["id", "odd ]name%s"], 30) for row in batch]
        assert sorted(int(str(i)) for i, _ in found) == list(range(-50, 950))
        assert all(name == f"n{i}" for i, name in found)
        limited = [i for batch in reader.part(reader.between("id", 5, 8), ["id"], 2) for (i,) in batch]
        assert limited == ["5", "6", "7"]
    with opened(server, "all types") as reader:
        reader.columns()
        assert sum(len(b) for b in reader.part(reader.parts(1)[0], ["id"], 2)) == DEEP + 1


def test_rows_are_read_without_locks_where_the_database_versions_them(database: Database, server: TdsServer) -> None:
    with opened(server, "many"):
        assert server.seen[-1] == "SET TRANSACTION ISOLATION LEVEL SNAPSHOT"
    database.versions_rows = False
    server.seen.clear()
    with opened(server, "many"):
        assert not any("ISOLATION LEVEL" in sql for sql in server.seen)


def test_positions_are_those_of_the_log(database: Database, server: TdsServer) -> None:
    with opened(server, "many") as reader:
        assert reader.position() == int("00000028000000100005", 16)
        assert reader.settled(0) == int("00000028000000100004", 16)
        database.log_end = None
        assert reader.position() == NO_PROOF
        database.log_end = "(40:16:5)"
        assert reader.position() == NO_PROOF
        database.captured = None
        with pytest.raises(SourceError, match="is change data capture enabled"):
            reader.settled(0)


def test_an_unknown_kind_of_encryption_is_refused(server: TdsServer) -> None:
    with pytest.raises(ConfigError, match="encryption=maybe is none of off, request, require"):
        opened(server, "many", url="sqlserver://h/shop?encryption=maybe")


def test_what_is_wrong_is_said_without_the_password(server: TdsServer) -> None:
    cases = [
        ({"password": "hunter2"}, "refuses the login: Login failed for user 'debezium'."),
        ({"port": 1}, "refuses the login: Unable to connect"),
        # The stand-in has no TLS.
        ({"url": "sqlserver://h/shop?encryption=require"}, "refuses the login: "),
        ({"table": "nowhere"}, "cannot be described: it does not exist, or the user may not see it"),
    ]
    for changes, said in cases:
        with pytest.raises(SourceError) as refused, opened(server, **{"table": "many", **changes}) as reader:
            reader.columns()
        assert said in refused.value.message
        assert "hunter2" not in str(refused.value)
        assert server.password not in str(refused.value)
        assert "DB-Lib" not in refused.value.message
    with (
        pytest.raises(SourceError, match="cannot be read: Invalid column name 'gone'"),
        opened(server, "many") as reader,
    ):
        list(reader.rows(["gone"], 10))
