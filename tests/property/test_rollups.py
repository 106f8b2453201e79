"""What keeps rollups equal to GROUP BY over the table. Histories and fault scripts compare them: test_histories and
test_fault_scripts.
"""

from dataclasses import replace

import pytest

from ch_sink.order import State
from ch_sink.stream.open_stream import OpenStream
from ch_sink.stream.run_task import task_name
from ch_sink.stream.tasks import RangeTask, tried
from tests.support.cases import cases, faults_of
from tests.support.rollups import PLAIN


def test_without_fillings_rollups_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the comparison can fail: truncates and interrupted batches are what fillings are for."""
    monkeypatch.setattr(OpenStream, "fill_rollups", lambda self, **_: None)
    chosen = (case for case in cases(0, 1200) if case.engine == "collapsing" and "truncates" in case.knobs)
    assert any("rollup" in text for case in chosen for text in faults_of(case, PLAIN))


def test_the_token_of_a_range_that_is_given_again_is_another_one() -> None:
    """Another batch of the same offsets has other tokens; a second execution of the same batch repeats."""
    task = RangeTask("s", "t", "id", 0, None, 0, 10, State(), batch=4)  # type: ignore[arg-type]
    assert task_name(task).batch == 4
    assert task_name(replace(task, batch=5)).batch != task_name(task).batch
    assert task_name(tried(task, 2)).batch == 4
