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


def test_a_column_that_every_part_of_the_table_lacks_counts_once() -> None:
    lacking = replace(EQUAL, lacking=("w",))
    assert compared([lacking, lacking], 10.0, 11.0, None).differences == 1
