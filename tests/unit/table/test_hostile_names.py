"""Names with quotes, backslashes and newlines in every statement of ``init``, carried out by the engine."""

from dataclasses import replace

import pytest

from ch_sink.model.policy import Policy
from ch_sink.table.ddl import Statement, init_statements, script
from ch_sink.table.detect import DETECT_SQL, assemble
from ch_sink.table.evolve import diff, existing_statements
from ch_sink.table.spec import EngineChoice, TableSpec
from ch_sink.types.connect import Field, RowSchema, SourceType
from ch_sink.types.sql import quote
from tests.support.choose import each_value
from tests.support.engine import Engine

NAMES = (
    "it's", 'say "hi"', "back\\slash", "two\nlines", "blank \n \nline", "tab\there", "tick`s", "$dollar ${x}",
    "-- no; comment", "ü 日",
)  # fmt: skip
KEY = Field("k'\"\\\n`", SourceType("int64", optional=False))
ROW = RowSchema((KEY, *(Field(name, SourceType("string", default=name, has_default=True)) for name in NAMES)), (KEY,))


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("name", "choice"), each_value(NAMES, EngineChoice))
def test_tables_views_and_policies(engine: Engine, name: str, choice: EngineChoice) -> None:
    roles = () if choice is EngineChoice.APPEND else (name, "other")
    spec = replace(TableSpec(name, name), engine=choice, row_policy_roles=roles, partition_by=f"{quote(KEY.name)} % 2")
    engine.run(f"DROP DATABASE IF EXISTS {quote(name)} SYNC")
    carry_out(engine, init_statements(ROW, spec))
    where = {"database": name, "table": name}
    view = engine.rows(f"SELECT * FROM {spec.view}")
    assert view == []
    assert [r["name"] for r in engine.rows(f"DESCRIBE TABLE {spec.view}")] == [KEY.name, *NAMES]
    found = assemble(engine.rows(DETECT_SQL, {key: escaped(value) for key, value in where.items()})[0], Policy())
    assert (found.database, found.name) == (name, name)
    assert [c.name for c in found.source_columns] == [KEY.name, *NAMES]
    assert diff(found, ROW, spec) == []
    more = replace(ROW, fields=(*ROW.fields, Field("new\n'`\\", SourceType("int32"))))
    carry_out(engine, existing_statements(found, more, spec))
    assert [r["name"] for r in engine.rows(f"DESCRIBE TABLE {spec.view}")][-1] == "new\n'`\\"
    engine.run(f"DROP DATABASE {quote(name)} SYNC")


def carry_out(engine: Engine, statements: list[Statement]) -> None:
    for statement in statements:
        # Access control is not in the embedded engine: such statements are parsed only.
        prefix = "EXPLAIN AST " if statement.kind == "row policy" else ""
        engine.run(prefix + statement.sql)


def escaped(text: str) -> str:
    """A query parameter as the engine reads it."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t")


def test_titles_stay_on_their_line() -> None:
    titles = script(init_statements(ROW, TableSpec("two\nlines", "two\nlines"))).splitlines()
    assert "-- table two lines" in titles
