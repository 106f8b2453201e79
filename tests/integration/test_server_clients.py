"""clickhouse-connect, unchanged, against the endpoint."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from collections.abc import Iterator
from itertools import count

import clickhouse_connect
import numpy as np
import pyarrow as pa
import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError
from clickhouse_connect.driver.external import ExternalData

from ch_sink.local.clickhouse.launch import EmbeddedClickHouse

pytestmark = pytest.mark.integration
_numbers = count(1)


def connect(endpoint: EmbeddedClickHouse, **options: object) -> Client:
    settings: dict[str, object] = {"compress": False, **options}
    return clickhouse_connect.get_client(host=endpoint.host, port=endpoint.port, **settings)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def client(clickhouse: EmbeddedClickHouse) -> Iterator[Client]:
    client = connect(clickhouse)
    client.command("CREATE DATABASE IF NOT EXISTS server_clients")
    client.database = "server_clients"
    yield client
    client.command("DROP DATABASE server_clients")
    client.close()


@pytest.fixture
def table(client: Client) -> str:
    name = f"t{next(_numbers)}"
    client.command(
        f"CREATE TABLE {name} (a UInt64, b String) ENGINE = MergeTree ORDER BY a "
        "SETTINGS non_replicated_deduplication_window = 100"
    )
    return name


def test_rows_go_in_and_come_back(client: Client, table: str) -> None:
    rows = [(n, f"row {n} " * 20) for n in range(20_000)]
    assert client.insert(table, rows, column_names=["a", "b"]).written_rows == 20_000
    assert [tuple(row) for row in client.query(f"SELECT * FROM {table} ORDER BY a").result_rows] == rows
    assert client.query_arrow(f"SELECT * FROM {table} ORDER BY a").column("b").to_pylist() == [b for _, b in rows]


def test_compressed_bodies_are_refused_with_the_way_out(clickhouse: EmbeddedClickHouse, table: str) -> None:
    client = connect(clickhouse, compress="lz4", database="server_clients")
    assert client.query("SELECT 1").first_row == (1,)  # a plain answer will do
    with pytest.raises(DatabaseError, match="compress=False"):
        client.insert(table, [(1, "x")], column_names=["a", "b"])
    client.close()


@pytest.mark.parametrize("name", ["CSV", "JSONEachRow", "TabSeparated", "Values"])
def test_raw_inserts_of_text_formats(client: Client, table: str, name: str) -> None:
    text = {
        "CSV": '1,"x, y"\n2,z\n',
        "JSONEachRow": '{"a":1,"b":"x, y"}\n{"a":2,"b":"z"}',
        "TabSeparated": "1\tx, y\n2\tz\n",
        "Values": "(1, 'x, y'), (2, 'z')",
    }[name]
    client.raw_insert(table, ["a", "b"], text, fmt=name)
    assert client.query(f"SELECT * FROM {table} ORDER BY a").result_rows == [(1, "x, y"), (2, "z")]


def test_inserts_from_a_generator_are_chunked(client: Client, table: str) -> None:
    def pieces() -> Iterator[bytes]:
        for start in range(0, 100_000, 1000):
            yield b"".join(b"%d,%d\n" % (n, n) for n in range(start, start + 1000))

    client.raw_insert(table, ["a", "b"], pieces(), fmt="CSV")
    assert client.query(f"SELECT count(), sum(a), uniqExact(b) FROM {table}").result_rows == [
        (100_000, sum(range(100_000)), 100_000)
    ]


@pytest.mark.parametrize("name", ["Native", "Arrow", "ArrowStream", "Parquet", "RowBinary", "JSON", "CSVWithNames"])
def test_what_one_format_gives_another_insert_takes(client: Client, table: str, name: str) -> None:
    body = client.raw_query("SELECT number AS a, toString(number) AS b FROM numbers(100000)", fmt=name)
    client.raw_insert(table, ["a", "b"], body, fmt=name)
    assert client.query(f"SELECT count(), sum(a), uniqExact(b) FROM {table}").result_rows == [
        (100_000, 4_999_950_000, 100_000)
    ]


def test_values_of_many_types_arrive_and_return_unchanged(client: Client) -> None:
    row = {
        "i": -(2**63),
        "u": 2**127,
        "d": decimal.Decimal("-12345678901234567890.1234"),
        "f": 0.1,
        "s": "naïve \x00 ' \\ \n",
        "n": None,
        "day": dt.date(2149, 6, 6),
        "t": dt.datetime(2024, 2, 29, 23, 59, 59, 999999),
        "id": uuid.UUID("12345678-1234-5678-1234-567812345678"),
        "list": ["a", "b'"],
        "map": {"k": 1},
        "e": "two",
    }
    client.command(
        "CREATE OR REPLACE TABLE types (i Int64, u UInt128, d Decimal(30, 4), f Float64, s String, n Nullable(Int8), "
        "day Date32, t DateTime64(6, 'UTC'), id UUID, list Array(String), map Map(String, UInt8), "
        "e Enum8('one' = 1, 'two' = 2)) ENGINE = MergeTree ORDER BY i"
    )
    client.insert("types", [list(row.values())], column_names=list(row))
    assert dict(zip(row, client.query("SELECT * FROM types").first_row, strict=True)) == row


def test_one_record_batch_becomes_one_part(client: Client) -> None:
    client.command("CREATE OR REPLACE TABLE wide (a Int64, b String) ENGINE = MergeTree ORDER BY a")
    rows = 1_500_000
    batch = pa.table({"a": np.arange(rows), "b": pa.array([f"value {n % 1000}" for n in range(rows)])})
    assert client.insert_arrow("wide", batch, settings={"async_insert": 0}).written_rows == rows
    parts = client.query("SELECT rows FROM system.parts WHERE database = currentDatabase() AND table = 'wide'")
    assert parts.result_rows == [(rows,)]


def test_a_repeated_token_inserts_nothing(client: Client, table: str) -> None:
    for content in ("x", "y"):
        settings = {"insert_deduplication_token": "chunk-1", "async_insert": 0}
        client.insert(table, [(1, content)], column_names=["a", "b"], settings=settings)
    client.insert(table, [(1, "z")], column_names=["a", "b"], settings={"insert_deduplication_token": "chunk-2"})
    assert client.query(f"SELECT b FROM {table} ORDER BY b").result_rows == [("x",), ("z",)]


def test_summary_of_selects_and_inserts(client: Client, table: str) -> None:
    done = client.command(f"INSERT INTO {table} SELECT number, '' FROM numbers(1000) WHERE number % 2 = 0")
    assert done.written_rows == 500  # type: ignore[union-attr]
    read = client.query(f"SELECT a FROM {table} WHERE b = '' LIMIT 7").summary
    assert (read["read_rows"], read["result_rows"]) == ("500", "7")


def test_settings_hold_for_one_query_only(client: Client) -> None:
    text = "SELECT getSetting('max_threads'), getSetting('max_block_size')"
    before = client.query(text).first_row
    assert client.query(text, settings={"max_threads": 3, "max_block_size": 1234}).first_row == (3, 1234)
    assert client.query(text).first_row == before


@pytest.mark.parametrize("statement", ["SET max_threads = 9", "USE system", "CREATE TEMPORARY TABLE mine (a UInt8)"])
def test_what_only_a_session_would_keep_is_refused(client: Client, statement: str) -> None:
    with pytest.raises(DatabaseError, match="keeps no sessions"):
        client.command(statement)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("String", "it's \\ a\nline\ttab and {braces} é"),
        ("UInt64", 2**64 - 1),
        ("Array(String)", ["a", "b'c", "d\\e"]),
        ("Nullable(String)", None),
        ("Date", dt.date(2024, 2, 29)),
        ("Decimal(20, 3)", decimal.Decimal("-1.125")),
        ("UUID", uuid.UUID(int=5)),
    ],
)
def test_parameters_of_every_kind(client: Client, kind: str, value: object) -> None:
    assert client.query(f"SELECT {{v:{kind}}}", parameters={"v": value}).first_row == (value,)


def test_identifier_parameters_and_form_encoding(clickhouse: EmbeddedClickHouse, client: Client, table: str) -> None:
    client.insert(table, [(1, "x")], column_names=["a", "b"])
    assert client.query("SELECT {c:Identifier} FROM {t:Identifier}", parameters={"c": "b", "t": table}).first_row == (
        "x",
    )
    forms = connect(clickhouse, form_encode_query_params=True, database="server_clients")
    keys = list(range(20_000))
    assert forms.query(
        "SELECT length({k:Array(UInt32)}), {s:String}", parameters={"k": keys, "s": "a'b"}
    ).first_row == (
        20_000,
        "a'b",
    )
    forms.close()


def test_external_tables(client: Client, table: str) -> None:
    client.insert(table, [(n, str(n)) for n in range(10)], column_names=["a", "b"])
    external = ExternalData(file_name="keys.csv", data=b"1\n3\n", fmt="CSV", structure="k UInt64")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, pa.schema([("k", pa.string())])) as writer:
        writer.write_batch(pa.record_batch({"k": ["3", "5"]}))
    external.add_file(file_name="texts", data=sink.getvalue().to_pybytes(), fmt="Arrow", structure="k String")
    text = f"SELECT a FROM {table} WHERE a IN keys AND b IN (SELECT k FROM texts)"
    for _ in range(2):  # the tables are gone after the query, so that a second one may bring its own
        assert client.query(text, external_data=external).result_rows == [(3,)]
    with pytest.raises(DatabaseError, match="UNKNOWN_TABLE"):
        client.query("SELECT * FROM keys")


def test_errors_carry_their_code(client: Client) -> None:
    for text, code in [
        ("SELECT * FROM nowhere", 60),
        ("SELEC 1", 62),
        ("SELECT nothing", 47),
        ("SELECT throwIf(number = 3) FROM numbers(10)", 395),
        ("SELECT 1 FORMAT Nonsense", 73),
        ("SELECT sleep(3) SETTINGS max_execution_time = 1", 159),
    ]:
        with pytest.raises(DatabaseError) as caught:
            client.query(text) if "FORMAT" not in text else client.raw_query(text)
        assert caught.value.code == code, text
    with pytest.raises(DatabaseError) as caught:
        client.query("SELECT 1", settings={"database": "nowhere"})
    assert caught.value.code == 81


def test_a_damaged_insert_inserts_nothing(client: Client, table: str) -> None:
    for name, body in [("CSV", b"1,x\nnonsense\n"), ("Native", b"\x02\x01broken"), ("Arrow", b"ARROW1 not")]:
        with pytest.raises(DatabaseError):
            client.raw_insert(table, ["a", "b"], body, fmt=name)
    assert client.command(f"SELECT count() FROM {table}") == 0


@pytest.mark.long
def test_a_failure_after_the_first_megabytes_reaches_the_client(client: Client) -> None:
    text = "SELECT number, throwIf(number = 5e6) FROM numbers(6000000) SETTINGS max_block_size = 9000, max_threads = 1"
    with client.query_rows_stream(text) as rows, pytest.raises(DatabaseError, match="is non-zero"):
        sum(1 for _ in rows)
    with pytest.raises(DatabaseError) as caught:  # a query that is not streamed waits for its end
        client.query(text)
    assert caught.value.code == 395


def test_large_results_stream(client: Client) -> None:
    with client.query_arrow_stream("SELECT number, toString(number) AS s FROM numbers(3000000)") as batches:
        assert sum(batch.num_rows for batch in batches) == 3_000_000
    with client.raw_stream("SELECT number FROM numbers(3000000)", fmt="TSV") as stream:
        assert sum(piece.count(b"\n") for piece in iter(lambda: stream.read(1 << 20), b"")) == 3_000_000


def test_commands_that_return_nothing_something_and_ddl(client: Client, table: str) -> None:
    assert client.command(f"EXISTS TABLE {table}") == 1
    assert table in client.command("SHOW TABLES")
    client.command(f"ALTER TABLE {table} ADD COLUMN c Nullable(Int8)")
    client.command(f"OPTIMIZE TABLE {table} FINAL")
    assert client.query(f"DESCRIBE TABLE {table}").result_columns[0] == ["a", "b", "c"]
    assert client.query(f"SELECT * FROM {table} LIMIT 0").column_names == ("a", "b", "c")
    client.command(f"DROP TABLE {table}")
    assert client.command(f"EXISTS TABLE {table}") == 0
