"""The rules of Hudi's RFC-39 for PostgreSQL and MySQL: operations, order, TOAST columns, deletes, bootstrap."""

import json
from typing import Any

import pytest

from tests.model.shapes import Column, Layout, TableShape
from tests.support.choose import each_value
from tests.support.documents import KEYED, Stream, faults_of
from tests.support.hand import PLACEHOLDER, Event, key_change, mysql, postgres

SEEDS = range(4)
COLUMNS = (
    Column("id", "int32", False, "Int32"),
    Column("name", "string", True, "Nullable(String)"),
    Column("notes", "string", True, "Nullable(String)", toastable=True),
    Column("place", "int32", False, "Int32"),
)
BY_KEY = Layout("by key", TableShape("t", COLUMNS, ("id",)), ("id",))
BY_PLACE = Layout("by place", BY_KEY.table, ("id",), "place")
LONG = "a value kept out of line " * 4


def row(id_: int, name: str | None, notes: str | None = LONG, place: int = 0) -> dict[str, Any]:
    return {"id": id_, "name": name, "notes": notes, "place": place}


def key(id_: int) -> dict[str, int]:
    return {"id": id_}


def send(stream: Stream, *events: Event, partition: int | None = None) -> None:
    for event in events:
        marks = {name.removeprefix("__debezium."): json.loads(text or b"{}") for name, text in event.headers or []}
        stream.send(event.key, event.value, partition=partition, **marks)


def pg(op: str, id_: int, before: Any, after: Any, commit: int | None, lsn: int, mark: Any = "false") -> Event:
    event = postgres(op, key(id_), before, after, commit, lsn)
    return Event(event.key, {**event.value, "source": {**event.value["source"], "snapshot": mark, "xmin": None}})


def filler(id_: int) -> dict[str, Any]:
    """``before`` of a delete under REPLICA IDENTITY DEFAULT: the key, and fillers."""
    return {"id": id_, "name": None, "notes": None, "place": 0}


def postgres_stream(layout: Layout) -> Stream:
    stream = Stream(layout, "postgresql", "plain")
    snapshot = [(row(1, "one"), "first"), (row(2, "two"), "true"), (row(3, "three", place=1), "last")]
    send(stream, *(pg("r", r["id"], None, r, None, 100, mark) for r, mark in snapshot))
    stream.send({"id": "556:110"}, {"status": "BEGIN", "id": "556:110", "ts_ms": 1, "event_count": None})
    send(stream, pg("c", 4, None, row(4, "four", "short"), None, 110))
    send(stream, pg("u", 1, None, row(1, "uno", PLACEHOLDER), 120, 125))
    send(stream, pg("d", 2, filler(2), None, 130, 131), Event(key(2), None))
    send(
        stream,
        *key_change(pg("d", 3, filler(3), None, 140, 141), pg("c", 5, None, row(5, "five", PLACEHOLDER, 1), 140, 141)),
    )
    stream.send(
        {"prefix": "p"}, {"op": "m", "ts_ms": 1, "source": {"connector": "postgresql", "name": "pg"}, "message": {}}
    )
    stream.send({"serverName": "pg"}, {"ts_ms": 1700000000000})
    send(stream, pg("u", 5, None, row(5, "fünf", PLACEHOLDER, 2), 150, 152))
    send(stream, pg("r", 4, None, row(4, "four", "short"), 150, 0, "incremental"))
    end = {"status": "END", "id": "557:160", "ts_ms": 1, "event_count": 1, "data_collections": []}
    stream.send({"id": "557:160"}, end)
    return stream


POSTGRES_TRUTH = [row(1, "uno"), row(4, "four", "short"), row(5, "fünf", place=2)]


def my(op: str, id_: int, before: Any, after: Any, file: int, pos: int, **source: Any) -> Event:
    return mysql(op, key(id_), before, after, pos, file=f"mysql-bin.{file:06d}", **source)


def mysql_stream(layout: Layout, gtid: str | None) -> Stream:
    """The log is rotated: positions start again in a file with a higher number (9 → 10, lower as text)."""
    stream = Stream(layout, "mysql", "plain")
    at = {"snapshot": "true", "server_id": 0, "gtid": None}
    send(stream, *(my("r", i, None, row(i, f"n{i}", place=i % 2), 9, 8000, **at) for i in (1, 2, 3)))
    stream.send({"id": "x"}, {"status": "BEGIN", "id": "x", "ts_ms": 1, "event_count": None, "data_collections": None})
    send(stream, my("c", 4, None, row(4, "four"), 9, 8500, gtid=gtid))
    send(stream, my("u", 1, row(1, "n1", place=1), row(1, "first", place=0), 9, 9000, gtid=gtid))
    notice = {"source": {"connector": "mysql"}, "databaseName": "sbtest", "ddl": "FLUSH LOGS"}
    stream.send({"databaseName": "sbtest"}, notice)
    send(stream, my("u", 1, row(1, "first", place=0), row(1, "last", None, place=3), 10, 4, gtid=gtid))
    send(stream, my("d", 2, row(2, "n2", place=0), None, 10, 300, row=0, gtid=gtid), Event(key(2), None))
    gone = my("d", 3, row(3, "n3", place=1), None, 10, 400, gtid=gtid)
    send(stream, *key_change(gone, my("c", 6, None, row(6, "n3", place=1), 10, 400, gtid=gtid)))
    # Rows of one statement share their position; ``row`` numbers them.
    send(stream, *(my("u", 4, row(4, "four"), row(4, f"four {n}"), 10, 500, row=n, gtid=gtid) for n in (0, 1)))
    return stream


MYSQL_TRUTH = [row(1, "last", None, place=3), row(4, "four 1"), row(6, "n3", place=1)]
GTIDS = [None, "24bc7850-2c16-11e6-a073-0242ac110002:9", "24bc7850-2c16-11e6-a073-0242ac110002:tag:1", "0-22301-17"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("engine", "layout"), each_value(KEYED, [BY_KEY, BY_PLACE]))
def test_postgres_bootstrap_and_changes_equal_the_table(engine: str, layout: Layout) -> None:
    stream = postgres_stream(layout)
    for seed in SEEDS:
        assert faults_of(stream.history(POSTGRES_TRUTH, 1 + seed % 3), engine, seed) == [], seed


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("engine", "layout"), each_value(KEYED, [BY_KEY, BY_PLACE]))
def test_mysql_bootstrap_and_changes_equal_the_table(engine: str, layout: Layout) -> None:
    for seed in SEEDS:
        stream = mysql_stream(layout, GTIDS[seed % len(GTIDS)])
        assert faults_of(stream.history(MYSQL_TRUTH, 1 + seed % 3), engine, seed) == [], seed


@pytest.mark.sampled(1)
@pytest.mark.parametrize("engine", ["replacing", "sign"])
def test_an_update_that_comes_after_the_delete_of_a_higher_lsn_does_not_bring_the_row_back(engine: str) -> None:
    """Insert (LSN 1), delete (3), update (2), in any batches: a deleted row keeps its ordering value."""
    stream = Stream(BY_KEY, "postgresql", "plain")
    send(stream, pg("c", 1, None, row(1, "a"), 1, 1), pg("d", 1, filler(1), None, 3, 3), partition=0)
    send(stream, pg("u", 1, None, row(1, "b"), 2, 2), partition=1)
    for seed in range(20):
        assert faults_of(stream.history([], 2), engine, seed) == [], seed


@pytest.mark.sampled(1)
@pytest.mark.parametrize("engine", ["replacing", "sign"])
def test_the_higher_position_wins_whichever_comes_first(engine: str) -> None:
    """PostgreSQL by LSN; MySQL by the file's number, then the position in it, not by text and not by ``pos`` alone."""
    by_lsn = Stream(BY_KEY, "postgresql", "plain")
    send(by_lsn, pg("c", 1, None, row(1, "a"), 1, 1), pg("u", 1, None, row(1, "newest"), 30, 30), partition=0)
    send(by_lsn, pg("u", 1, None, row(1, "older"), 4, 4), partition=1)
    by_file = Stream(BY_KEY, "mysql", "plain")
    send(by_file, my("u", 1, row(1, "a"), row(1, "newest"), 10, 4), partition=0)
    send(by_file, my("u", 1, row(1, "a"), row(1, "older"), 9, 90_000), partition=1)
    for stream in (by_lsn, by_file):
        for seed in range(12):
            assert faults_of(stream.history([row(1, "newest")], 2), engine, seed) == [], seed


@pytest.mark.parametrize("engine", KEYED)
def test_toast_columns_that_did_not_change_keep_the_stored_value(engine: str) -> None:
    """Also where nothing but the placeholder comes for a long time, and after the value itself changed."""
    stream = Stream(BY_KEY, "postgresql", "plain")
    send(stream, pg("c", 1, None, row(1, "a", "old " * 20), 1, 1), pg("u", 1, None, row(1, "b", LONG), 2, 2))
    send(stream, *(pg("u", 1, None, row(1, f"c{i}", PLACEHOLDER), 3 + i, 3 + i) for i in range(9)))
    for seed in SEEDS:
        assert faults_of(stream.history([row(1, "c8", LONG)], 1), engine, seed) == [], seed


@pytest.mark.parametrize(
    ("engine", "layout"), each_value([name for name in KEYED if name != "append"], [BY_KEY, BY_PLACE])
)
def test_bootstrap_by_rows_that_were_loaded_by_other_means(engine: str, layout: Layout) -> None:
    """The rows stand there at version 0; the changes since, placeholders and moves included, are applied to them."""
    stored = [row(1, "one"), row(2, "two"), row(3, "three", place=1), row(7, "seven")]
    stream = postgres_stream(layout)
    stream.sent = stream.sent[3:]
    for seed in SEEDS:
        history = stream.history([*POSTGRES_TRUTH, row(7, "seven")], 1 + seed % 3)
        assert faults_of(history, engine, seed, stored) == [], seed
