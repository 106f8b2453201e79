"""Recorded streams, decoded and folded by key, give the source's final rows."""

from decimal import Decimal
from typing import Any

import pytest

from ch_sink.decode import Decoder
from ch_sink.discovery.sample import sample_schema
from ch_sink.model.change import Op
from ch_sink.model.policy import policy_of
from ch_sink.table.model import TargetTable
from ch_sink.types.column import Column
from tests.support.decoding import replacing, table_of, truth_value
from tests.support.fixtures import partitions, read_truth, registry, topics

STREAMS = [
    f"{database}-{encoding}"
    for database in ("mariadb", "postgres")
    for encoding in ("json_schema", "json_schema-kc", "json_schema-wide", "json_plain", "avro")
] + ["mariadb-busy-json_plain"]
"""The busy stream of PostgreSQL cannot be folded in Kafka order: its repeated key changes look up other rows."""
NOT_FOLDED = {"ac", "tr", "nopk", "nopk_d"}
"""Schema changes, truncates and rows without a key need more than a fold by key."""

CHANGED_BY_THE_CONNECTOR = {
    # (database, table, column): why the recorded value differs from the source's.
    ("mariadb", "all_types", "c_ubi"): "BIGINT UNSIGNED arrives as a signed number",
    ("mariadb", "oddkey", "u"): "BIGINT UNSIGNED arrives as a signed number",
    ("mariadb", "all_types", "c_enum"): "a label with a comma gets a backslash",
    ("mariadb", "all_types", "c_dt0"): "year 0001 arrives as 2001",
    ("mariadb", "odd", "u"): "a UUID that ends in byte 00 arrives shifted",
    ("mariadb", "odd", "p"): "the truth holds the point's internal bytes",
    ("postgres", "all_types", "c_interval"): "microseconds, months approximated",
    ("postgres", "all_types", "c_timetz"): "shifted to UTC",
    ("postgres", "all_types", "c_ltext_gen"): "generated columns are in snapshot rows only",
    ("postgres", "all_types", "c_char"): "the truth's text drops the padding of CHAR(5)",
    ("postgres", "all_types", "c_hstore"): "hstore arrives as JSON",
    ("postgres", "all_types", "c_inet"): "the truth's text adds the mask of a single address",
    ("postgres", "special", "n"): "NaN and infinity arrive as null",
    ("mariadb", "nn", "o"): "NULL arrives as the default",
    ("postgres", "nn", "o"): "NULL arrives as the default",
}


def cases() -> list[Any]:
    found = []
    for stream in STREAMS:
        for topic in topics(stream):
            table = topic.rpartition(".")[2]
            if topic.count(".") == 2 and table not in NOT_FOLDED and not table.startswith("dbz_"):
                found.append(pytest.param(stream, topic, table, id=f"{stream}-{table}"))
    return found


def schema_stream(stream: str, table: str) -> tuple[str, str] | None:
    """The stream with schemas that holds the table of a schemaless one."""
    database = stream.partition("-")[0]
    for name in ("json_schema", "json_schema-kc", "json_schema-wide"):
        for topic in topics(f"{database}-{name}"):
            if topic.rpartition(".")[2] == table and topic.count(".") == 2:
                return f"{database}-{name}", topic
    return None


@pytest.mark.parametrize(("stream", "topic", "table"), cases())
def test_final_rows_equal_the_source(stream: str, topic: str, table: str) -> None:
    database = stream.partition("-")[0]
    truth = read_truth(f"{database}-busy" if "busy" in stream else database)[table]
    target = made_by_hand(table) if "busy" in stream else made_by_init(stream, topic, table)
    decoder = Decoder(target, policy_of(), registry=registry(stream))
    state: dict[tuple[Any, ...], dict[str, Any]] = {}
    for records in partitions(stream, topic).values():
        batch = decoder.decode(records)
        assert not batch.bad
        assert not batch.unknown
        fold(state, batch)
    assert decoder.learn(next(iter(partitions(stream, topic).values()))).key_columns == tuple(truth.key)
    types = {c.name: c.type for c in target.columns}
    hidden = {c for d, t, c in CHANGED_BY_THE_CONNECTOR if (d, t) == (database, table)} - set(truth.key)
    hidden |= {n for n in truth.names if n not in types}
    expected = [expected_row(truth, row, types, hidden) for row in truth.rows]
    found = [shown_row(row, truth, hidden) for row in state.values()]
    key = truth.key
    assert sorted(found, key=lambda row: by_key(row, key)) == sorted(expected, key=lambda row: by_key(row, key))


def by_key(row: dict[str, Any], key: list[str]) -> list[str]:
    return [repr(row[name]) for name in key]


def made_by_init(stream: str, topic: str, table: str) -> TargetTable:
    typed = schema_stream(stream, table) if "plain" in stream else (stream, topic)
    assert typed is not None
    schema = sample_schema(list(partitions(*typed).values()), registry=registry(typed[0]))
    assert schema is not None
    return table_of(schema, table)


def made_by_hand(table: str) -> TargetTable:
    """No comments: the types of schemaless literals are inferred from the columns."""
    columns = {
        "acct": {
            "id": "Int64",
            "k": "Int32",
            "owner": "Nullable(String)",
            "note": "Nullable(String)",
            "n": "Nullable(Int32)",
            "price": "Nullable(Decimal(20, 4))",
            "updated": "Nullable(DateTime64(6, 'UTC'))",
        },
        "hot": {"id": "Int32", "v": "Nullable(Int64)", "tag": "LowCardinality(Nullable(String))"},
    }[table]
    key = ("id", "k") if table == "acct" else ("id",)
    return replacing(tuple(Column(n, t) for n, t in columns.items()), key, table)


def source_types(truth: Any) -> dict[str, str]:
    return {str(c["name"]): str(c["type"]) for c in truth.columns}


def fold(state: dict[tuple[Any, ...], dict[str, Any]], batch: Any) -> None:
    rows, keys = batch.after.to_pylist(), batch.key.to_pylist()
    for i in range(len(batch)):
        key = tuple(keys[i].values())
        if batch.op[i] == Op.DELETE:
            state.pop(key, None)
            continue
        row = rows[i]
        for column, mask in batch.unavailable.items():
            if mask[i]:
                # Of a key change the placeholder means the row under its old key: told by no image here.
                row[column] = state.get(key, {}).get(column, Ellipsis)
        state[key] = row


def expected_row(truth: Any, row: tuple[str | None, ...], types: dict[str, str], hidden: set[str]) -> dict[str, Any]:
    kinds = source_types(truth)
    return {
        name: _signed(truth_value(text, kinds[name], types[name]), kinds[name])
        for name, text in zip(truth.names, row, strict=True)
        if name not in hidden
    }


def _signed(value: Any, kind: str) -> Any:
    """BIGINT UNSIGNED as the connector sends it."""
    return value - 2**64 if kind.startswith("bigint") and "unsigned" in kind and value and value >= 2**63 else value


def shown_row(row: dict[str, Any], truth: Any, hidden: set[str]) -> dict[str, Any]:
    kinds = source_types(truth)
    return {n: _comparable(row[n], kinds[n]) for n in truth.names if n not in hidden}


def _comparable(value: Any, kind: str) -> Any:
    """Numbers of PostgreSQL's numeric are texts in the column: compare the numbers. NaN equals itself here."""
    if kind == "numeric" and isinstance(value, bytes):
        return Decimal(value.decode())
    return "NaN" if value != value else value
