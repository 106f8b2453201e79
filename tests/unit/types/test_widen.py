"""Which column type can be widened into which."""

import pytest

from ch_sink.types.chtype import widened


@pytest.mark.parametrize(
    ("old", "new", "wider"),
    [
        ("Int32", "Int64", "Int64"),
        ("Int64", "Int32", None),
        ("Int32", "Int32", None),
        ("Int32", "Nullable(Int64)", "Nullable(Int64)"),
        ("Nullable(Int32)", "Int64", "Nullable(Int64)"),
        ("Int32", "Nullable(Int32)", "Nullable(Int32)"),
        ("Int64", "Nullable(Int32)", "Nullable(Int64)"),
        ("UInt32", "Int64", None),
        ("Float32", "Float64", "Float64"),
        ("Int32", "Float64", None),
        ("String", "Int64", None),
        ("String", "Nullable(Int64)", None),
        ("String", "Nullable(String)", "Nullable(String)"),
        ("LowCardinality(String)", "Nullable(String)", "LowCardinality(Nullable(String))"),
        ("Decimal(10, 2)", "Decimal(12, 4)", "Decimal(12, 4)"),
        ("Decimal(10, 2)", "Decimal(10, 4)", "Decimal(12, 4)"),
        ("Decimal(20, 4)", "Decimal(10, 2)", None),
        ("Decimal(76, 2)", "Decimal(76, 4)", None),
        ("DateTime64(3, 'Asia/Tokyo')", "DateTime64(6, 'UTC')", "DateTime64(6, 'Asia/Tokyo')"),
        ("DateTime64(9)", "DateTime64(6)", None),
        ("Date", "Date32", "Date32"),
        ("Date32", "Date", None),
        ("UInt8", "UInt64", "UInt64"),
        ("Nullable(Int32)", "Int32", None),
        ("Decimal(10, 4)", "Decimal(10, 2)", "Decimal(12, 4)"),
        ("Array(Int32)", "Array(Int64)", None),
        ("Array(Int32)", "Nullable(Tuple(items Array(Int32)))", None),
    ],
)
def test_a_type_grows_within_its_family(old: str, new: str, wider: str | None) -> None:
    assert widened(old, new) == wider


def test_null_is_not_let_into_a_place_column() -> None:
    assert widened("Int32", "Nullable(Int32)", may_be_nullable=False) is None
    assert widened("Int32", "Nullable(Int64)", may_be_nullable=False) == "Int64"
