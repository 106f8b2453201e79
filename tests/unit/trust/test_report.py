"""What a report says of rows and columns that were not compared."""

from dataclasses import replace
from typing import Any

import pytest

from ch_sink.trust.differences import Difference
from ch_sink.trust.report import Report, causes, in_julian_calendar, lines, page
from ch_sink.trust.rollups import RolledUp

REPORT = Report("orders", "shop.orders", "source", 10)


def test_the_page_names_columns_that_were_not_compared() -> None:
    report = replace(REPORT, left_out=("price", "<b>"))
    assert "Not compared: price, &lt;b&gt;." in page([report])
    assert "Not compared" not in page([REPORT])


def test_the_page_calls_a_table_equal_only_if_all_of_it_was_compared() -> None:
    assert "<h1>All tables equal their source" in page([REPORT])
    for part in ({"partial": True}, {"share": 0.3}, {"changing": 1}, {"unknown": 1}):
        shown = page([REPORT, replace(REPORT, **part)])
        assert "<h1>No difference in what was compared" in shown
        assert "<code>no difference" in shown
    assert "Only some rows or columns were compared." in page([replace(REPORT, partial=True)])


def test_the_page_shows_rollups() -> None:
    rollup = RolledUp("by_n", 2, 1, ({"n": 5, "total": 7},))
    shown = page([replace(REPORT, rollups=(rollup,))])
    assert "Some tables differ" in shown
    assert "Rollup by_n: 1 of 2 groups differ; n=5, total=7." in shown


def test_a_table_that_lacks_a_column_of_its_source_is_not_equal() -> None:
    report = replace(REPORT, lacking=("<w>",))
    assert not report.equal
    assert (report.as_json()["equal"], report.as_json()["lacking"]) == (False, ["<w>"])
    assert REPORT.as_json()["lacking"] == []
    assert "  equal" not in lines(report)
    assert "lacks columns of the source: <w>" in "\n".join(lines(report))
    assert "lacks columns of the source: &lt;w&gt;" in page([report])
    assert "Some tables differ" in page([report])


def test_a_source_that_has_none_of_the_rows_is_doubted() -> None:
    report = replace(REPORT, extra=10)
    assert "source.table may be another table" in "\n".join(lines(report))
    assert "source.table may be another table" in page([report])
    for other in (
        replace(REPORT, extra=9),
        replace(report, against="topic"),
        replace(REPORT, rows=0),
        replace(report, partial=True),
    ):
        assert not other.unrelated


def test_rows_that_a_standing_stream_has_begun_with_do_not_keep_changing() -> None:
    standing, busy = replace(REPORT, changing=5, behind=True), replace(REPORT, changing=5)
    for report, said in ((standing, "has not finished"), (busy, "kept changing")):
        assert said in lines(report)[-1]
        assert said in page([report])


@pytest.mark.parametrize(
    ("source", "table", "same"),
    [
        ("1582-10-04", "1582-10-14", True),
        ("1582-10-14", "1582-10-24", True),
        ("1582-10-15", "1582-10-25", False),
        ("1500-03-01", "1500-03-10", False),
        ("1500-03-01", "1500-03-11", True),
        ("1500-02-28", "1500-03-09", True),
        ("1000-06-01", "1000-06-07", True),
        ("0100-03-01", "0100-02-28", True),
        ("0001-01-01", "0000-12-30", True),
        ("1500-03-01 12:30:00.123456", "1500-03-11 12:30:00.123456", True),
        ("1500-03-01 12:30:00", "1500-03-11 12:30:01", False),
        ("1500-03-01", "1500-03-01", False),
        ("0250-01-01", "0250-01-01", False),
        ("2024-03-01", "2024-03-14", False),
        ("0044-03-15 00:00:00 BC", "0044-03-13 00:00:00 BC", True),
        ("0044-03-15 BC", "0044-03-15", False),
        ("a", "b", False),
        (None, "1500-03-11", False),
        (7, 17, False),
    ],
)
def test_a_date_in_the_julian_calendar_is_told_to_the_day(source: Any, table: Any, same: bool) -> None:
    """Those of other years than 1500-03-01 are what Debezium 3.5 makes in a snapshot of a PostgreSQL."""
    assert in_julian_calendar(source, table) is same


def test_each_column_and_cause_is_named_once() -> None:
    old = Difference("different", {"id": 1}, {"d": ("1500-03-01", "1500-03-11"), "n": (None, 7), "m": (None, 8)})
    other = Difference("different", {"id": 2}, {"d": ("1400-03-01", "1400-03-10"), "x": (1, 2)})
    found = causes([old, other], {"n": 7, "m": 7}.get)
    assert [text.partition(":")[0] for text in found] == ["column d", "column n"]
    assert "Julian" in found[0]
    assert "replace.null.with.default=false" in found[1]


def test_a_key_in_the_julian_calendar_leaves_one_row_missing_and_one_extra() -> None:
    missing = Difference("missing", {"id": 1, "d": "1500-03-01"}, {})
    orphan = Difference("extra", {"id": 1, "d": "1500-03-11"}, {})
    stranger = Difference("extra", {"id": 2, "d": "1500-03-11"}, {})
    assert [text.partition(":")[0] for text in causes([missing, orphan], lambda _: None)] == ["column d"]
    assert causes([missing, stranger], lambda _: None) == ()
