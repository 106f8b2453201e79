"""Nobody reads around the place that decides which server answers, and how fresh its answer must be."""

import ast
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3] / "ch_sink"
ROOMS = ("clickhouse", "discovery", "pipeline", "stream", "spark", "trust", "cli")
ASKING = ("rows", "arrow", "command")
OTHERS = {
    # What decides, and what it is made of.
    "clickhouse/client.py",
    "clickhouse/replicas.py",
    # What a server says of its tables, and constants.
    "clickhouse/schema.py",
}
HARMLESS = {
    # What a server says of itself and of its objects.
    "clickhouse/table_admin.py": ("_DEFINITIONS",),
    "clickhouse/fence.py": ("hostName()",),
    # The types and trees of expressions over no rows; the statement that created a table; the server's settings.
    "clickhouse/rollups.py": ("probe(", "_CREATED", "_MEANING"),
    # Rows that the question itself brings along.
    "clickhouse/round_trip.py": ("FROM _sent",),
    # The columns of a table, and no row of it.
    "trust/subject.py": ("LIMIT 0",),
    "discovery/value_findings.py": ("DESCRIBE TABLE",),
    # The table of differences, which one server has.
    "trust/differences.py": ("self._name",),
    # A table like another one, empty; its comment.
    "trust/successor.py": ("sql",),
}


def around(source: str, harmless: Sequence[str] = ()) -> list[str]:
    """The requests of a file which read a table without saying which."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ASKING):
            continue
        owner = ast.unparse(node.func.value)
        if not owner.endswith(("client", "live.client", "_client", "other")) or not node.args:
            continue
        sql = ast.unparse(node.args[0])
        written = isinstance(node.args[0], (ast.Constant, ast.JoinedStr))
        if node.func.attr == "command":
            reads = "SELECT" in sql if written else sql == "sql"
        else:
            reads = "FROM" in sql or not written
        if any(words in sql for words in harmless):
            continue
        if reads and "system." not in sql and not any(keyword.arg == "of" for keyword in node.keywords):
            found.append(f"{node.lineno}: {sql[:100]}")
    return found


@pytest.mark.sampled(4)
@pytest.mark.parametrize("room", ROOMS)
def test_every_request_that_reads_a_table_names_it(room: str) -> None:
    found = {
        name: calls
        for path in sorted((ROOT / room).rglob("*.py"))
        if (name := str(path.relative_to(ROOT))) not in OTHERS
        and (calls := around(path.read_text(encoding="utf-8"), HARMLESS.get(name, ())))
    }
    assert not found


@pytest.mark.parametrize(
    ("call", "count"),
    [
        ('subject.client.rows(f"SELECT count() AS n FROM {table.qualified}")', 1),
        ("self._client.arrow(sql, settings={}, of=table)", 0),
        ("self._client.arrow(sql)", 1),
        ('client.rows("SELECT name FROM system.tables")', 0),
        ('client.command(f"INSERT INTO {a} SELECT 1 FROM {b}", again=False)', 1),
        ('client.command(f"DROP TABLE {a}")', 0),
    ],
)
def test_a_request_that_does_not_is_seen(call: str, count: int) -> None:
    assert len(around(call)) == count
