"""Types with their times in UTC."""

import pytest

from ch_sink.types.chtype import in_utc


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("DateTime", "DateTime('UTC')"),
        ("DateTime64(3)", "DateTime64(3, 'UTC')"),
        ("Nullable(DateTime64(9, 'Europe/Berlin'))", "Nullable(DateTime64(9, 'UTC'))"),
        ("LowCardinality(Nullable(DateTime('Europe/Berlin')))", "Nullable(DateTime('UTC'))"),
        ("Map(String, Array(DateTime('Europe/Berlin')))", "Map(String, Array(DateTime('UTC')))"),
        ("Tuple(DateTime String, `DateTime b` DateTime)", "Tuple(DateTime String, `DateTime b` DateTime('UTC'))"),
        *(
            (kind, kind)
            for kind in (
                "Nullable(Int64)",
                "LowCardinality(Nullable(String))",
                "Array(Enum8('DateTime' = 1, 'it\\'s DateTime64(3)' = 2))",
                "Array(LowCardinality(DateTime))",
                "JSON(a DateTime)",
            )
        ),
    ],
)
def test_types(kind: str, wanted: str) -> None:
    assert in_utc(kind) == wanted
