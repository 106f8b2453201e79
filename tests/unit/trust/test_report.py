"""What a report says of rows and columns that were not compared."""

from dataclasses import replace

from ch_sink.trust.report import Report, lines, page

REPORT = Report("orders", "shop.orders", "source", 10)


def test_the_page_names_columns_that_were_not_compared() -> None:
    report = replace(REPORT, left_out=("price", "<b>"))
    assert "Not compared: price, &lt;b&gt;." in page([report])
    assert "Not compared" not in page([REPORT])


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
