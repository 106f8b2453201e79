"""What is kept of a comparison for `status`, the page and metrics."""

from dataclasses import replace

import pytest

from ch_sink.cli.status import _compared
from ch_sink.ports import Compared
from ch_sink.trust.continuous import compared
from ch_sink.trust.report import Report
from ch_sink.trust.rollups import RolledUp

EQUAL = Report("orders", "shop.orders", "source", 10)
BEFORE = Compared(7.0, 5.0, "source")


@pytest.mark.parametrize(
    ("report", "many"),
    [
        (EQUAL, 0),
        (replace(EQUAL, missing=1, extra=2, different=3), 6),
        (replace(EQUAL, unpaired=2), 2),
        (replace(EQUAL, rollups=(RolledUp("r", 4, 1), RolledUp("q", 4))), 1),
        (replace(EQUAL, lacking=("w",)), 1),
    ],
)
def test_whatever_differs_is_kept_and_shown(report: Report, many: int) -> None:
    found = compared([report, EQUAL], 10.0, 11.0, BEFORE)
    assert (found.differences, found.equal_up_to) == (many, 5.0 if many else 10.0)
    assert (found.differences == 0) == report.equal
    assert (f"{many} difference" in _compared(found)) == (not report.equal)


@pytest.mark.parametrize("report", [replace(EQUAL, unknown=3), replace(EQUAL, changing=3, behind=True)])
def test_a_table_is_not_proved_equal_while_rows_cannot_be_judged(report: Report) -> None:
    """Retention has removed their events from the topic, or the stream stands still amid them."""
    found = compared([report, EQUAL], 10.0, 11.0, BEFORE)
    assert (found.equal_up_to, found.as_json()["unjudged"]) == (5.0, 3)
    assert _compared(found).startswith("no difference from its source at 1970-01-01 00:00:11, 3 rows not judged; equal")
    assert compared([replace(EQUAL, changing=3)], 10.0, 11.0, BEFORE).equal_up_to == 10.0


def test_a_column_that_every_part_of_the_table_lacks_counts_once() -> None:
    lacking = replace(EQUAL, lacking=("w",))
    assert compared([lacking, lacking], 10.0, 11.0, None).differences == 1
