"""What sampled values say about settings and comments."""

import base64
import json
from collections.abc import Sequence
from typing import Any

import pytest

from ch_sink.discovery.value_findings import refuted_comments, value_findings
from ch_sink.errors import REFILL_STORED
from ch_sink.table.checks import Finding
from ch_sink.table.fits import type_findings
from ch_sink.types import converter
from ch_sink.types.column import Column, ValuePolicy
from tests.support.decoding import replacing

NOON = 1_657_655_632  # a moment of 2022, in seconds


def said(column: Column, values: Sequence[Any], policy: ValuePolicy | None = None) -> list[tuple[str, str | None]]:
    found = findings([column], {column.name: values}, policy)
    return [(f.level, f.remedy) for f in found]


def findings(
    columns: Sequence[Column], values: dict[str, Sequence[Any]], policy: ValuePolicy | None = None
) -> list[Finding]:
    literals = {name: [json.dumps(value).encode() for value in found] for name, found in values.items()}
    return list(value_findings(replacing(tuple(columns), ("id",)), literals, policy or ValuePolicy()))


def b64(*raw: int) -> str:
    return base64.b64encode(bytes(raw)).decode()


@pytest.mark.parametrize(
    ("column", "values", "setting"),
    [
        ("Decimal(10, 2)", ["12.50", "-3", "100.00"], "decimal_handling: string"),
        ("DateTime64(6, 'UTC')", [NOON * 1000, 0], "time_precision: connect"),
        ("DateTime64(3, 'UTC')", [NOON * 10**6 + 7], "time_precision: microseconds"),
        ("DateTime", [NOON * 10**9], "time_precision: nanoseconds"),
    ],
)
def test_the_setting_is_named_with_the_value_to_write(column: str, values: list[Any], setting: str) -> None:
    assert said(Column("x", column), values) == [("fail", f"{setting}\n{REFILL_STORED}")]
    key, value = setting.split(": ")
    assert said(Column("x", column), values, ValuePolicy(**{key: value})) == []  # type: ignore[arg-type]


def test_a_setting_that_is_wrong_is_named_back() -> None:
    assert said(Column("x", "Decimal(10, 2)"), [b64(1, 244)], ValuePolicy(decimal_handling="string")) == [
        ("fail", f"decimal_handling: precise\n{REFILL_STORED}")
    ]


@pytest.mark.parametrize("handling", ["bytes", "base64"])
def test_hexadecimal_text_of_a_binary_column(handling: str) -> None:
    policy = ValuePolicy(binary_handling=handling)  # type: ignore[arg-type]
    column = Column("x", "String", comment="debezium: bytes")
    texts = ["deadbeef" * 4, "00ff"]
    assert said(column, texts, policy) == [("fail", f"binary_handling: hex\n{REFILL_STORED}")]
    assert said(column, texts, ValuePolicy(binary_handling="hex")) == []
    wrong = said(column, ["3q2+7w=="] * 4, ValuePolicy(binary_handling="hex"))
    assert wrong == [("fail", f"binary_handling: base64\n{REFILL_STORED}")]


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("Decimal(10, 2)", [b64(1, 244), b64(0)]),
        ("Decimal(10, 2)", [12.5, 3]),  # decimal.handling.mode=double, or numbers
        ("DateTime64(6, 'UTC')", [NOON * 10**6, 0, -1]),
        ("DateTime64(6, 'UTC')", [1000, 0]),  # may be anything
        ("DateTime64(3, 'UTC')", ["2022-07-12T19:53:52Z"]),
        ("String", ["12.50", 7]),
        ("Int64", [NOON * 1000]),
        ("Date32", [19_000, "2022-07-12"]),
    ],
)
def test_values_that_fit_are_no_finding(column: str, values: list[Any]) -> None:
    assert said(Column("x", column), values) == []


def test_columns_of_different_units_get_comments_and_no_setting() -> None:
    columns = [Column("a", "DateTime64(6, 'UTC')"), Column("b", "DateTime64(3, 'UTC')")]
    found = findings(columns, {"a": [NOON * 1000], "b": [NOON * 10**6]})
    assert [f.remedy for f in found] == [
        f"ALTER TABLE `d`.`t` COMMENT COLUMN `a` 'debezium: int64 io.debezium.time.Timestamp';\n{REFILL_STORED}",
        f"ALTER TABLE `d`.`t` COMMENT COLUMN `b` 'debezium: int64 io.debezium.time.MicroTimestamp';\n{REFILL_STORED}",
    ]


def test_a_value_that_no_setting_helps_is_shown_with_its_reason() -> None:
    [found] = findings([Column("x", "Int8")], {"x": [5, 300]})
    assert (found.level, "300" in found.detail, "dead letter" in found.detail) == ("warn", True, True)


@pytest.mark.parametrize(
    ("column", "guess", "value"),
    [
        ("DateTime64(3, 'UTC')", "int64", NOON * 1000),
        ("Array(String)", "struct", ["a"]),
        ("Nullable(Tuple(items Array(Nullable(Int32))))", "struct", [1, None]),
        ("Point", "struct", {"x": 1.0, "y": 2.0, "wkb": None, "srid": None}),
    ],
)
def test_a_guess_that_contradicts_its_column_is_ignored_and_told_of(column: str, guess: str, value: Any) -> None:
    """Comments that an earlier init wrote from the values of plain JSON."""
    ruined, clean = Column("x", column, comment=f"mine debezium: {guess}"), Column("x", column)
    table = replacing((ruined,), ("id",))
    found = list(type_findings(table, {"x": None}, ("id",), ValuePolicy()))
    assert [f.level for f in found] == ["warn", "ok"]
    assert found[0].remedy == "ALTER TABLE `d`.`t` COMMENT COLUMN `x` 'mine';"
    mine, its = (converter(None, c, encoding="json", policy=ValuePolicy()) for c in (ruined, clean))
    assert mine.convert([value]).array.equals(its.convert([value]).array)


def test_a_comment_that_says_more_than_a_guess_can_is_no_guess() -> None:
    table = replacing((Column("x", "UUID", comment="debezium: int64 io.debezium.time.Timestamp"),), ("id",))
    assert [f.level for f in type_findings(table, {"x": None}, ("id",), ValuePolicy())] == ["fail"]


def test_a_guess_that_only_values_contradict_is_taken_out_by_init() -> None:
    """``string`` on a Decimal column may be meant, unless its texts are base64 and no numbers."""
    guess = Column("x", "Decimal(10, 2)", comment="debezium: string")
    table = replacing((guess,), ("id",))
    assert refuted_comments(table, {"x": [b'"fQ=="']}, ValuePolicy()) == [guess]
    assert refuted_comments(table, {"x": [b'"12.50"']}, ValuePolicy()) == []
    assert refuted_comments(table, {}, ValuePolicy()) == []
    bits = Column("x", "UInt64", comment="debezium: string")
    assert refuted_comments(replacing((bits,), ("id",)), {"x": [b'"BQAAAAAAAAA="']}, ValuePolicy()) == [bits]
    [found] = value_findings(table, {"x": [b'"fQ=="']}, ValuePolicy())
    assert (found.level, found.remedy) == ("fail", "ALTER TABLE `d`.`t` COMMENT COLUMN `x` '';")
