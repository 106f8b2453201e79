"""Drawn histories, kills, lost answers, second jobs: each rollup equals GROUP BY over the source's rows."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import count, islice

import pytest

from ch_sink.order import State
from ch_sink.stream.open_stream import OpenStream
from ch_sink.stream.run_task import task_name
from ch_sink.stream.tasks import RangeTask, tried
from tests.property.test_histories import faulty
from tests.support.cases import Case, cases
from tests.support.fault_scripts import Script, faults_of_script, scripts
from tests.support.rollups import PLAIN

KINDS = ("collapsing", "versioned")


def collapsing(first: int) -> Iterator[Case]:
    return (case for case in cases(first, 10**9) if case.engine in KINDS)


def wrong_scripts(drawn: Iterable[Script]) -> dict[str, str]:
    found = {str(script): faults_of_script(script, rollups=PLAIN) for script in drawn}
    return {script: wrong[0] for script, wrong in found.items() if wrong}


def collapsing_scripts(first: int, each: int) -> Iterator[Script]:
    for seed in count(first):
        yield from (script for script in scripts(seed, 1, each) if script.case.engine in KINDS)


@pytest.mark.parametrize("first", [0, 400])
def test_rollups_of_histories_equal_the_source(first: int) -> None:
    assert list(faulty(islice(collapsing(first), 50), PLAIN)) == []


def test_rollups_equal_the_source_whatever_happens() -> None:
    assert wrong_scripts(islice(collapsing_scripts(1, 2), 40)) == {}


@pytest.mark.long
def test_rollups_of_five_thousand_histories_and_scripts() -> None:
    """``CH_SINK_SCRIPTS``: how many instead, of each."""
    many = int(os.environ.get("CH_SINK_SCRIPTS", "5000"))
    assert list(faulty(islice(collapsing(3 * 10**6), many), PLAIN)) == []
    assert wrong_scripts(islice(collapsing_scripts(3 * 10**6, 10), many)) == {}


def test_without_fillings_rollups_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the comparison can fail: truncates and interrupted batches are what fillings are for."""
    monkeypatch.setattr(OpenStream, "fill_rollups", lambda self, *, doubtful: None)
    assert len(list(islice(faulty(islice(collapsing(0), 200), PLAIN), 2))) == 2


def test_the_token_of_a_range_that_is_given_again_is_another_one() -> None:
    """Where a topic's end was cut off, offsets come a second time; a second execution of the same batch repeats."""
    task = RangeTask("s", "t", "id", 0, None, 0, 10, State(), batch=4)  # type: ignore[arg-type]
    assert task_name(task).batch == 4
    assert task_name(replace(task, batch=5)).batch != task_name(task).batch
    assert task_name(tried(task, 2)).batch == 4
