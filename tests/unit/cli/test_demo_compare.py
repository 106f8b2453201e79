"""The demo's comparison finds what differs, and forgives only ways of writing."""

import pytest

from ch_sink.local.demo import STREAMS, Truth, TruthColumn, as_source, fixtures_folder, truth_of, unequal

COLUMNS = (
    TruthColumn("id", "bigint", True),
    TruthColumn("amt", "numeric(20,4)", False),
    TruthColumn("at", "timestamp with time zone", False),
    TruthColumn("raw", "bytea", False),
    TruthColumn("v", "text", False),
)
SOURCE = ("1", "1.5000", "2024-02-29 12:34:56.500000+00", "\\x00ff", "1.50")
STORED = ("1", "1.5", "2024-02-29 12:34:56.500", "00FF", "1.50")


def wrong(stored) -> list:
    truth = Truth(COLUMNS, (SOURCE,))
    return unequal(truth, {truth.key_of(row): row for row in stored})


def test_other_ways_of_writing_are_equal():
    assert wrong([STORED]) == []


@pytest.mark.parametrize(
    ("column", "value"),
    [(1, "1.5001"), (1, None), (2, "2024-02-29 12:34:56.501"), (3, "00FE"), (4, "1.5"), (4, None), (4, "")],
)
def test_any_other_value_differs(column, value):
    assert wrong([(*STORED[:column], value, *STORED[column + 1 :])]) == [("1",)]


def test_rows_too_few_and_too_many_differ():
    assert wrong([]) == [("1",)]
    assert wrong([STORED, ("2", *STORED[1:])]) == [("2",)]


def test_equal_values_are_shown_as_the_source_writes_them_and_others_as_stored():
    truth = Truth(COLUMNS, (SOURCE,))
    assert as_source(truth, SOURCE, STORED) == SOURCE
    assert as_source(truth, SOURCE, ("1", "9", *STORED[2:]))[1] == "9"


@pytest.mark.parametrize("stream", STREAMS, ids=lambda s: s.name)
def test_every_stream_of_the_demo_has_a_recording_and_a_truth(stream):
    truth = truth_of(fixtures_folder(), stream)
    assert truth.rows
    assert any(c.key for c in truth.columns)
