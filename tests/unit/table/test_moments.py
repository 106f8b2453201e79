"""The views of a history at a time, against the changes that were stored: clocks tie and are set back."""

import random
from collections import Counter
from dataclasses import dataclass, replace

import pytest

from ch_sink.model.policy import policy_of
from ch_sink.table.ddl import create_table, made_table, views_of
from ch_sink.table.detect import DETECT_SQL, assemble
from ch_sink.table.model import SOURCE_TIME
from ch_sink.table.spec import EngineChoice, TableSpec
from ch_sink.table.views import moments_of
from ch_sink.types.connect import Field, RowSchema, SourceType
from tests.support.engine import Engine

INT, TEXT = SourceType("int64", optional=False), SourceType("string", optional=True)
SCHEMA = RowSchema((Field("id", INT), Field("v", TEXT)), (Field("id", INT),))
SPEC = TableSpec("t", "orders", engine=EngineChoice.APPEND)
Row = tuple[int, str | None]
SECONDS = 20


@dataclass(frozen=True)
class Change:
    """A row that comes or goes; times are seconds of a minute."""

    row: Row
    sign: int
    time: int


def make(engine: Engine, schema: RowSchema, changes: list[Change]) -> None:
    engine.run("DROP TABLE IF EXISTS t.orders SYNC")
    engine.run(create_table(schema, SPEC))
    for view in views_of(made_table(schema, SPEC), [f.name for f in schema.key], SPEC.cluster):
        engine.run(view.sql)
    rows = [
        f"({c.row[0]}, {'NULL' if c.row[1] is None else repr(c.row[1])}, '{'d' if c.sign < 0 else 'u'}', {c.sign}, "
        f"{version}, '{moment(c.time)}')"
        for version, c in enumerate(changes)
    ]
    random.Random(1).shuffle(rows)
    engine.run(f"INSERT INTO t.orders (id, v, _op, _sign, _version, {SOURCE_TIME}) VALUES {', '.join(rows)}")


def moment(second: int) -> str:
    return f"2026-11-01 00:00:{second:02}.000"


def shown(engine: Engine, sql: str) -> Counter[Row]:
    return Counter((r["id"], r["v"]) for r in engine.rows(f"SELECT id, v FROM {sql}"))


def last_of_each_key(changes: list[Change]) -> Counter[Row]:
    last = {c.row[0]: c for c in changes}
    return Counter(c.row for c in last.values() if c.sign > 0)


def rows_left(changes: list[Change]) -> Counter[Row]:
    left: Counter[Row] = Counter()
    for c in changes:
        left[c.row] += c.sign
    return +left


def drawn(draw: random.Random, keyed: bool) -> list[Change]:
    """Changes in the order of their versions."""
    alive: Counter[Row] = Counter()
    out = []
    for _ in range(40):
        row = (draw.randrange(3), draw.choice(["a", "b", None]))
        gone = [r for r in alive.elements() if not keyed or r[0] == row[0]]
        sign = -1 if gone and draw.random() < 0.4 else 1
        row = draw.choice(gone) if sign < 0 else row
        if keyed:
            alive = Counter({r: n for r, n in alive.items() if r[0] != row[0]})
        alive[row] += 1 if sign > 0 else -int(not keyed)
        alive = +alive
        out.append(Change(row, sign, draw.randrange(SECONDS)))
    return out


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("keyed", [True, False])
def test_each_moment_has_the_changes_whose_times_are_not_later(engine: Engine, keyed: bool, seed: int) -> None:
    changes = drawn(random.Random(f"{keyed} {seed}"), keyed)
    make(engine, SCHEMA if keyed else replace(SCHEMA, key=()), changes)
    state = last_of_each_key if keyed else rows_left
    for second in range(SECONDS):
        wanted = state([c for c in changes if c.time <= second])
        at = moment(second)
        assert shown(engine, f"t.orders_at(at = '{at}')") == wanted
        assert shown(engine, f"t.orders_history WHERE valid_from <= '{at}' AND ifNull(valid_to > '{at}', 1)") == wanted
    assert shown(engine, "t.orders_history WHERE valid_to IS NULL") == shown(engine, "t.orders_current")
    [lives] = engine.rows("SELECT count() AS n, countIf(valid_to < valid_from) AS wrong FROM t.orders_history")
    assert lives == {"n": sum(c.sign > 0 for c in changes), "wrong": 0}


def test_a_life_ends_where_the_next_one_of_its_row_begins(engine: Engine) -> None:
    a, b = (1, "a"), (1, "b")
    make(engine, SCHEMA, [Change(a, 1, 1), Change(b, 1, 9), Change(a, 1, 4), Change(a, -1, 4), Change(b, 1, 7)])
    lives = engine.rows("SELECT * FROM t.orders_history ORDER BY _version")
    assert [(r["v"], r["valid_from"], r["valid_to"], r["_version"], r["_op"]) for r in lives] == [
        ("a", moment(1), moment(4), 0, "u"),
        ("b", moment(4), moment(4), 1, "u"),  # its time says 9, and the change after it 4
        ("a", moment(4), moment(4), 2, "u"),  # deleted in the same moment
        ("b", moment(7), None, 4, "u"),
    ]


@pytest.mark.parametrize(
    ("change", "left"),
    [
        ("DROP COLUMN _source_time", ["_at_version"]),
        ("MODIFY COLUMN _version UInt64", ["_at", "_history"]),
        ("RENAME COLUMN v TO valid_to", ["_at_version", "_at"]),
    ],
)
def test_a_table_has_the_views_for_which_it_has_columns(engine: Engine, change: str, left: list[str]) -> None:
    engine.run("DROP TABLE IF EXISTS t.orders SYNC")
    engine.run(create_table(SCHEMA, replace(SPEC, order_by=("id",))))
    engine.run(f"ALTER TABLE t.orders {change}")
    table = assemble(engine.rows(DETECT_SQL, {"database": "t", "table": "orders"})[0], policy_of())
    made = moments_of(table, ("id",))
    assert list(made) == left
    for sql in made.values():
        engine.run(sql)
