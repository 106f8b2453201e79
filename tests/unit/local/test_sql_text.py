"""Clauses of a statement are found where ClickHouse's parser would find them, whatever stands in strings."""

import pytest

from ch_sink.local.clickhouse.sql_text import analyse


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ("SELECT 1", "SELECT", None),
        ("select 1 format JSON", "SELECT", "JSON"),
        ("  -- format CSV\n/* FORMAT X */ WITH 1 AS x SELECT x FORMAT Arrow ;", "SELECT", "Arrow"),
        ("(SELECT 1) UNION ALL (SELECT 2) FORMAT TSV", "SELECT", "TSV"),
        ("SELECT 'it''s FORMAT CSV' AS \"FORMAT\"", "SELECT", None),
        ("SELECT 'a\\' FORMAT CSV'", "SELECT", None),
        ("SELECT format FROM t", "SELECT", None),
        ("SELECT * FROM (SELECT 1 FORMAT CSV) AS t", "SELECT", None),
        ("SELECT $x$ FORMAT CSV $x$ FORMAT Null", "SELECT", "Null"),
        ("SELECT 1 FORMAT CSV SETTINGS max_threads = 1", "SELECT", "CSV"),
        ("SHOW TABLES FORMAT JSONCompact", "SHOW", "JSONCompact"),
        ("WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x", "INSERT", None),
    ],
)
def test_kind_and_format(text: str, kind: str, name: str | None) -> None:
    found = analyse(text.encode())
    assert (found.kind, found.format) == (kind, name)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("INSERT INTO t FORMAT CSV\n1,2", "1,2"),
        ("INSERT INTO t FORMAT CSV \r\n1,2", "1,2"),
        ("INSERT INTO t FORMAT CSV\n\n1,2", "\n1,2"),
        ("INSERT INTO t FORMAT JSONEachRow {}", "{}"),
        ("insert into db.t (a, `FORMAT`) values (1, ';')", "(1, ';')"),
        ("INSERT INTO t SETTINGS a = 'VALUES' VALUES (1)", "(1)"),
        ("INSERT INTO FUNCTION file('x', 'CSV', 'a Int8') FORMAT CSV\n1", "1"),
        ("INSERT INTO t SELECT a FROM input('a Int8, b String') FORMAT CSV\n1,x", "1,x"),
        ("INSERT INTO t SELECT a FROM (SELECT * FROM input('a Int8')) FORMAT CSV\n1", "1"),
    ],
)
def test_rows_of_an_insert_begin_after_its_format(text: str, rows: str) -> None:
    found = analyse(text.encode())
    assert found.takes_rows
    assert text[found.rows_at :] == rows


def test_rows_of_any_bytes_are_not_read_as_sql() -> None:
    found = analyse(b"INSERT INTO t FORMAT Native\n\x00';--SELECT /*\xff")
    assert found.format == "Native"
    assert not found.second_statement


@pytest.mark.parametrize("text", ["INSERT INTO t SELECT 1", "INSERT INTO t (a) SELECT b FROM c", "SELECT 1"])
def test_statements_without_rows(text: str) -> None:
    assert not analyse(text.encode()).takes_rows


def test_second_statement_is_told_from_a_closing_semicolon() -> None:
    assert not analyse(b"SELECT 1;;  -- end\n").second_statement
    assert analyse(b"SELECT 1; DROP TABLE t").second_statement
    assert not analyse(b"SELECT ';'").second_statement


def test_clauses_that_name_files_are_seen() -> None:
    assert analyse(b"SELECT 1 INTO OUTFILE 'x'").outfile
    assert analyse(b"INSERT INTO t FROM INFILE 'x' FORMAT CSV").infile
    assert not analyse(b"SELECT 'INTO OUTFILE x'").outfile


def test_empty_text_has_no_kind() -> None:
    assert analyse(b" -- nothing\n").kind == ""
