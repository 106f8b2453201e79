"""The current-state view against the engine: what it shows for rows that a sink may have stored."""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from ch_sink.model.policy import policy_of
from ch_sink.table.ddl import create_table, init_statements, made_table, views_of
from ch_sink.table.detect import DETECT_SQL, assemble
from ch_sink.table.spec import EngineChoice, TableSpec
from ch_sink.types.connect import Field, RowSchema, SourceType
from tests.support.choose import each_value
from tests.support.engine import Engine as ClickHouse

Row = tuple[int, int, str]
INT, TEXT = SourceType("int64", optional=False), SourceType("string", optional=True)
SCHEMA = RowSchema((Field("id", INT), Field("p", INT), Field("v", TEXT)), (Field("id", INT),))
KEYLESS = replace(SCHEMA, key=())
BASE = TableSpec("t", "orders", partition_by="p")


def make(engine: ClickHouse, schema: RowSchema, spec: TableSpec) -> None:
    engine.run("DROP TABLE IF EXISTS t.orders SYNC")
    engine.run(create_table(schema, spec))
    for view in views_of(made_table(schema, spec), [f.name for f in schema.key], spec.cluster):
        engine.run(view.sql)


def shown(engine: ClickHouse) -> Counter[Row]:
    return Counter((r["id"], r["p"], r["v"]) for r in engine.rows("SELECT * FROM t.orders_current"))


class Sink:
    """Stores changes as the engine demands, the plainest way: one insert per change and partition."""

    def __init__(self, engine: ClickHouse, choice: EngineChoice) -> None:
        self.engine, self.choice = engine, choice
        self.live: dict[int, tuple[Row, int]] = {}
        self.version = 0

    def put(self, row: Row, sign: int, version: int) -> None:
        kid, p, v = row
        marks = {
            EngineChoice.REPLACING: ("_version, _is_deleted", f"{version}, {int(sign < 0)}"),
            EngineChoice.APPEND: ("_op, _sign, _version", f"'{'d' if sign < 0 else 'u'}', {sign}, {version}"),
        }.get(self.choice, ("_sign, _version", f"{sign}, {version}"))
        self.engine.run(f"INSERT INTO t.orders (id, p, v, {marks[0]}) VALUES ({kid}, {p}, '{v}', {marks[1]})")

    def change(self, key: int, row: Row | None) -> None:
        self.version += 2
        old = self.live.pop(key, None)
        collapsing = self.choice in (EngineChoice.COLLAPSING, EngineChoice.VERSIONED_COLLAPSING)
        if collapsing:
            moved = old is not None and row is not None and old[0][1] != row[1]
            if row is not None and moved:
                self.put(row, 1, self.version)  # new places before old ones
            if old is not None:
                self.put(old[0], -1, old[1])
            if row is not None and not moved:
                self.put(row, 1, self.version)
        elif self.choice is EngineChoice.APPEND:
            last = row or (old[0] if old else None)
            if last is not None:
                self.put(last, 1 if row else -1, self.version)
        else:
            if old is not None and (row is None or old[0][1] != row[1]):
                self.put(old[0], -1, self.version)
            if row is not None:
                self.put(row, 1, self.version + 1)
        if row is not None:
            self.live[key] = (row, self.version)

    @property
    def truth(self) -> Counter[Row]:
        return Counter(row for row, _ in self.live.values())


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("choice", "seed"), each_value(EngineChoice, range(3)))
def test_the_view_shows_the_live_rows_whatever_partition_they_moved_to(
    engine: ClickHouse, choice: EngineChoice, seed: int
) -> None:
    make(engine, SCHEMA, replace(BASE, engine=choice))
    draw = random.Random(seed)
    sink = Sink(engine, choice)
    for step in range(40):
        key = draw.randrange(4)
        row = None if draw.random() < 0.25 else (key, draw.randrange(3), f"v{step}")
        if row is not None or key in sink.live:
            sink.change(key, row)
        if step % 8 == 7:
            assert shown(engine) == sink.truth
        if step % 16 == 15:
            engine.run("OPTIMIZE TABLE t.orders FINAL")
            assert shown(engine) == sink.truth


def test_final_of_a_collapsing_table_shows_the_old_row_where_the_view_does_not(engine: ClickHouse) -> None:
    # The reason for the view's setting: the engine's own answer, kept here so that a change of it is seen.
    make(engine, SCHEMA, replace(BASE, engine=EngineChoice.COLLAPSING))
    sink = Sink(engine, EngineChoice.COLLAPSING)
    sink.change(1, (1, 2, "old"))
    sink.change(1, (1, 1, "new"))
    assert [r["v"] for r in engine.rows("SELECT v FROM t.orders FINAL")] == ["old"]
    assert shown(engine) == {(1, 1, "new"): 1}
    outer = "SELECT v FROM t.orders_current SETTINGS do_not_merge_across_partitions_select_final = 0"
    assert [r["v"] for r in engine.rows(outer)] == ["new"]


def test_a_table_without_key_shows_each_row_as_often_as_the_source_has_it(engine: ClickHouse) -> None:
    make(engine, KEYLESS, replace(BASE, engine=EngineChoice.APPEND))
    draw = random.Random(7)
    sink = Sink(engine, EngineChoice.APPEND)
    truth: Counter[Row] = Counter()
    for _ in range(60):
        row = (draw.randrange(2), draw.randrange(2), draw.choice(["a", "b"]))
        sign = -1 if truth[row] and draw.random() < 0.5 else 1
        truth[row] += sign
        sink.put(row, sign, draw.randrange(1000))
    assert shown(engine) == +truth


def test_only_the_sources_columns_are_shown(engine: ClickHouse) -> None:
    for choice in EngineChoice:
        make(engine, SCHEMA, replace(BASE, engine=choice))
        names = [r["name"] for r in engine.rows("DESCRIBE TABLE t.orders_current")]
        assert names == ["id", "p", "v"]


@pytest.mark.parametrize("choice", EngineChoice)
def test_streams_that_fill_other_columns_of_a_table_want_the_same_views(choice: EngineChoice) -> None:
    table = made_table(SCHEMA, replace(BASE, engine=choice))
    assert views_of(replace(table, left_out=frozenset("v")), ("id",), None) == views_of(table, ("id",), None)


@pytest.mark.parametrize("choice", EngineChoice)
def test_a_detected_table_gets_the_views_of_a_made_one(engine: ClickHouse, choice: EngineChoice) -> None:
    spec = replace(BASE, engine=choice)
    make(engine, SCHEMA, spec)
    row: dict[str, Any] = engine.rows(DETECT_SQL, {"database": "t", "table": "orders"})[0]
    made = [s for s in init_statements(SCHEMA, spec) if s.kind == "view"]
    assert views_of(assemble(row, policy_of()), ("id",), spec.cluster) == made


def test_a_detected_table_is_the_one_that_was_asked_for(engine: ClickHouse) -> None:
    for choice in EngineChoice:
        make(engine, SCHEMA, replace(BASE, engine=choice, dedup_window=123))
        table = assemble(engine.rows(DETECT_SQL, {"database": "t", "table": "orders"})[0], policy_of())
        assert table.engine.family is choice.family
        assert table.dedup_window == 123
        assert table.system_columns == {name for name, _ in choice.system_columns}
        assert [c.name for c in table.source_columns] == ["id", "p", "v"]
        assert "p" in table.place_columns
