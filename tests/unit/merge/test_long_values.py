"""A value that PostgreSQL leaves out is long: a row in which the column is null or empty does not know it."""

from typing import Any

import pytest

from ch_sink.model.policy import policy_of
from ch_sink.types.column import Column
from tests.support.document_run import document_table
from tests.support.hand import PLACEHOLDER, postgres, records_of
from tests.support.local_runner import LocalRunner
from tests.support.memory_stream import MemoryStream, MemoryTopic

LONG = "a long value"


def stored(
    kind: str,
    before: dict[str, Any],
    placeholder: Any,
    connector: str = "postgresql",
    engine: str = "replacing",
    **policy: Any,
) -> tuple[list[Any], list[str]]:
    """The column in the table after a create that states ``before`` and an update that leaves it out; dead letters.

    The two are in one chunk, or in two.
    """
    events = [
        postgres("c", {"id": 1}, None, {"id": 1, "n": 1, **before}, 100, 90),
        postgres("u", {"id": 1}, None, {"id": 1, "n": 2, "big": placeholder}, 110, 105),
    ]
    for event in events:
        assert event.value is not None
        event.value["source"]["connector"] = connector
    found = []
    for chunk in (1, 50):
        columns = (Column("id", "Int64"), Column("n", "Int64"), Column("big", kind))
        made = MemoryStream(
            document_table(columns, "replacing", "id"),
            ("id",),
            MemoryTopic("t", {0: records_of(events)}),
            policy_of(**policy),
            chunk_offsets=chunk,
        )
        runner = LocalRunner(made.settings, made.ports())
        runner.catch_up()
        runner.stop()
        rows = [(row["n"], row["big"]) for row in made.table.current()]
        found.append((rows, [one.letter.reason for one in made.dead_letters.list()]))
    assert found[0] == found[1]
    return found[0]


def unresolved(found: tuple[list[Any], list[str]]) -> bool:
    rows, errors = found
    return rows == [(1, rows[0][1])] and len(errors) == 1 and "no earlier value of this row is known" in errors[0]


EMPTY: list[tuple[str, dict[str, Any], Any]] = [
    ("Nullable(String)", {}, PLACEHOLDER),
    ("Nullable(String)", {"big": None}, PLACEHOLDER),
    ("String", {}, PLACEHOLDER),
    ("String", {"big": ""}, PLACEHOLDER),
    ("Array(String)", {}, [PLACEHOLDER]),
    ("Map(String, String)", {}, {PLACEHOLDER: PLACEHOLDER}),
]


@pytest.mark.parametrize(("kind", "before", "placeholder"), EMPTY)
def test_a_row_in_which_it_is_null_or_empty_does_not_know_it(
    kind: str, before: dict[str, Any], placeholder: Any
) -> None:
    assert unresolved(stored(kind, before, placeholder))


def test_it_becomes_null_where_the_configuration_says_so() -> None:
    assert stored("Nullable(String)", {}, PLACEHOLDER, on_unresolved="null") == ([(2, None)], [])


@pytest.mark.parametrize(
    ("kind", "long", "placeholder"),
    [
        ("Nullable(String)", LONG, PLACEHOLDER),
        ("Array(String)", ["one", "two"], [PLACEHOLDER]),
        ("Map(String, String)", {"one": "two"}, {PLACEHOLDER: PLACEHOLDER}),
    ],
)
def test_a_long_value_is_kept(kind: str, long: Any, placeholder: Any) -> None:
    rows, errors = stored(kind, {"big": long}, placeholder)
    assert (errors, rows[0][0]) == ([], 2)
    assert rows == stored(kind, {"big": long}, long)[0]


@pytest.mark.parametrize("connector", ["oracle", "sqlserver"])
def test_other_sources_leave_null_out_too(connector: str) -> None:
    assert stored("Nullable(String)", {"big": None}, PLACEHOLDER, connector) == ([(2, None)], [])
