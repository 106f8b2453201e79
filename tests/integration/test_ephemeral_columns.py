"""Tables with a column that is not stored, and one that each insert computes from it."""

from dataclasses import replace
from typing import Any

import pytest

from ch_sink.clickhouse import Client
from ch_sink.errors import SourceError, StreamFailed
from ch_sink.model.policy import policy_of
from ch_sink.table.ddl import truncate_statement
from ch_sink.trust.key import wanted_key
from ch_sink.trust.one_key import stored_rows
from ch_sink.trust.purge import purged
from ch_sink.trust.repair import repaired
from ch_sink.trust.resync import resynced
from ch_sink.trust.subject import Options
from ch_sink.types.connect import Field, RowSchema, SourceType
from tests.support.hand import APPEND, ENGINES, OWN, Event, key, mysql
from tests.support.hand_commands import Hand, each_of, made
from tests.support.hand_steps import Rows, empty, lose

pytestmark = pytest.mark.integration

TYPES = {"id": "bigint", "v": "varchar", "w": "varchar"}
SOURCE = [(1, "a", "xx"), (2, "B", "yyyy"), (3, "c", "z")]
WANTED = [(1, "a", 2), (2, "B", 4), (3, "c", 1)]


def stated(id_: int, v: str, w: str, pos: int, op: str = "c") -> Event:
    after = {"id": id_, "v": v, "w": w}
    return mysql(op, key(id_), after if op == "u" else None, after, pos)


EVENTS = [
    stated(1, "a", "xx", 10),
    stated(2, "b", "yyy", 20),
    stated(2, "B", "yyyy", 30, "u"),
    stated(3, "c", "z", 40),
]


def with_ephemeral(client: Client, database: str, engine: str) -> Hand:
    """The lengths of ``w``; all events are read."""
    clause, own = OWN.get(engine, APPEND)
    columns = f"w String EPHEMERAL, n UInt64 DEFAULT length(w), {own}"
    it = made(client, database, (clause, columns), policy_of(on_bad_record="fail"), [EVENTS])
    it.read((0, 4))
    it.source = Rows(SOURCE, types=TYPES)
    return it


def rows(it: Hand) -> list[tuple[Any, ...]]:
    """As readers of the view see them."""
    found = it.client.rows(f"SELECT * FROM {it.database}.t_current ORDER BY id")
    return [tuple(r.values()) for r in found]


def row_type(types: tuple[str, ...] = ("id", "v", "w")) -> RowSchema:
    """The row type of events that state these columns."""
    kinds = {"id": SourceType("int64"), "v": SourceType("string"), "w": SourceType("string")}
    return RowSchema(tuple(Field(name, kinds[name]) for name in types), (Field("id", kinds["id"]),))


@each_of("engine", [*ENGINES, "append"], "replacing", "collapsing")
def test_the_view_shows_what_is_stored(client: Client, database: str, engine: str) -> None:
    assert rows(with_ephemeral(client, database, engine)) == WANTED


@each_of("engine", ENGINES, "replacing", "versioned")
def test_a_truncate_empties_the_table(client: Client, database: str, engine: str) -> None:
    it = with_ephemeral(client, database, engine)
    client.command(truncate_statement(it.subject.table, 1 << 120, "_version"))
    assert rows(it) == []


@each_of("engine", [*ENGINES, "append"], "replacing", "collapsing")
@pytest.mark.parametrize("against", ["source", "topic"])
def test_a_repair_computes_what_the_stream_would(client: Client, database: str, engine: str, against: Any) -> None:
    it = with_ephemeral(client, database, engine)
    lose(it, 1)
    client.command(f"ALTER TABLE {database}.t UPDATE v = 'x', n = 9 WHERE id = 2 SETTINGS mutations_sync = 2")
    done = repaired(it.subject, Options(patience=0, against=against), apply=True)
    assert (done.rows, done.left, done.unreadable, done.report.left_out) == (2, 0, 0, ())
    assert rows(it) == WANTED


@each_of("engine", [*ENGINES, "append"], "replacing")
@pytest.mark.parametrize("against", ["source", "topic"])
def test_a_table_that_is_filled_anew_has_what_the_stream_would_compute(
    client: Client, database: str, engine: str, against: Any
) -> None:
    it = with_ephemeral(client, database, engine)
    empty(it)
    resynced(it.refill, apply=True, against=against)
    assert rows(it) == WANTED


@each_of("engine", ENGINES, "replacing", "collapsing")
def test_a_column_that_no_event_states_has_its_default(client: Client, database: str, engine: str) -> None:
    """The source has such a column, which the connector leaves out."""
    clause, own = OWN[engine]
    columns = f"w String EPHEMERAL 'four', n UInt64 DEFAULT length(w), {own}"
    events = [mysql("c", key(1), None, {"id": 1, "v": "a"}, 10), mysql("c", key(2), None, {"id": 2, "v": "b"}, 20)]
    it = made(client, database, (clause, columns), policy_of(on_bad_record="fail"), [events])
    it.read((0, 2))
    it.source = Rows(SOURCE[:2], types=TYPES)
    assert rows(it) == [(1, "a", 4), (2, "b", 4)]
    subject = replace(it.subject, schema=row_type(("id", "v")))
    lose(it, 1)
    assert repaired(subject, Options(patience=0, against="source"), apply=True).left == 0
    assert rows(it) == [(1, "a", 4), (2, "B", 4)]
    resynced(replace(it.refill, subject=subject), apply=True)
    assert rows(it) == [(1, "a", 4), (2, "B", 4)]


def test_rows_are_purged_and_a_key_is_explained(client: Client, database: str) -> None:
    it = with_ephemeral(client, database, "replacing")
    it.topic([*EVENTS, mysql("d", key(1), {"id": 1, "v": "a", "w": "xx"}, None, 50), stated(4, "d", "zz", 60)])
    it.read((0, 6))
    assert purged(it.subject, it.own, {0: 6}, apply=True, settle=0.0).rows
    assert rows(it) == [*WANTED[1:], (4, "d", 2)]
    table = it.subject.table
    assert [row["n"] for row in stored_rows(client, table, wanted_key(client, table, key(4)))] == ["2"]


def test_what_the_source_does_not_give_is_not_computed(client: Client, database: str) -> None:
    it = with_ephemeral(client, database, "replacing")
    it.source = Rows([(1, "x"), (2, "B"), (3, "c")])
    subject = replace(it.subject, schema=row_type())
    with pytest.raises(StreamFailed, match="does not store column 'w', from which others are computed"):
        repaired(subject, Options(patience=0, against="source"), apply=True)
    with pytest.raises(SourceError, match="the source table has no column 'w'"):
        resynced(replace(it.refill, subject=subject), apply=True)
    assert rows(it) == WANTED
