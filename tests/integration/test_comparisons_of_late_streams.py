"""A stream is behind its topic when its table is compared with the database."""

from contextlib import closing
from itertools import islice

import pytest

from ch_sink.clickhouse import Client
from ch_sink.trust.report import Report, lines, page
from ch_sink.trust.subject import Options
from ch_sink.trust.verify import Comparison, verified
from tests.support.hand_commands import Hand, hand
from tests.support.hand_steps import Rows
from tests.support.hand_tables import insert

pytestmark = pytest.mark.integration

EVENTS = [insert(1, "a", 100), insert(2, "b", 110), insert(3, "c", 120)]


def report_of(it: Hand) -> Report:
    with verified(it.subject, Options(patience=0, against="source")) as found:
        return found.report


def test_the_report_says_how_far_behind_the_stream_is(client: Client, database: str) -> None:
    it = hand(client, database, "replacing", EVENTS)
    it.source = Rows([(1, "a"), (2, "b"), (3, "c")])
    it.read((0, 1))
    late = report_of(it)
    assert (late.missing, late.lag, late.as_json()["lag"]) == (2, 2, 2)
    assert any("2 offsets behind its topic" in line for line in lines(late))
    assert "2 offsets behind its topic" in page([late])
    it.read_all()
    done = report_of(it)
    assert (done.equal, done.lag, done.lagging) == (True, 0, "")


def test_a_row_that_is_lost_is_not_said_to_be_late(client: Client, database: str) -> None:
    it = hand(client, database, "replacing", EVENTS)
    it.source = Rows([(1, "a"), (2, "b"), (3, "c"), (4, "lost")])
    it.read_all()
    found = report_of(it)
    assert (found.missing, found.lagging) == (1, "")


def test_a_comparison_that_waits_lets_others_go_on_meanwhile(client: Client, database: str) -> None:
    it = hand(client, database, "replacing", EVENTS)
    it.source = Rows([(1, "a"), (2, "b"), (3, "c")])
    it.read((0, 1))
    options = Options(patience=120, against="source")
    with closing(Comparison(it.subject, options, lambda _: None)) as comparison:
        steps = comparison.steps()
        next(steps)
        it.read_all()
        assert len(list(islice(steps, 20))) < 20
        assert (comparison.report.equal, comparison.report.lag) == (True, 0)
