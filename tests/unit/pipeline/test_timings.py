"""Times by stage: what is inside another stage counts for itself only, in each thread."""

import threading
import time

import pytest

from ch_sink.pipeline.guards import STAGES, Stages


def test_an_inner_stage_is_taken_off_the_outer_one() -> None:
    stages = Stages()
    with stages.stage("merge"):
        time.sleep(0.02)
        with stages.stage("lookup"):
            time.sleep(0.05)
    assert 0.05 <= stages.seconds["lookup"] < 0.5
    assert 0.02 <= stages.seconds["merge"] < stages.seconds["lookup"] + 0.5
    assert sum(stages.seconds.values()) >= 0.07


def test_threads_nest_on_their_own() -> None:
    stages = Stages()

    def insert() -> None:
        with stages.stage("insert"):
            time.sleep(0.05)

    with stages.stage("merge"):
        thread = threading.Thread(target=insert)
        thread.start()
        thread.join()
    assert stages.seconds["insert"] >= 0.05
    assert stages.seconds["merge"] >= 0.05  # it waited; nothing of another thread is taken off


def test_a_stage_that_fails_is_counted_too() -> None:
    stages = Stages()

    def broken() -> None:
        with stages.stage("decode"):
            time.sleep(0.01)
            raise KeyError

    with pytest.raises(KeyError):
        broken()
    assert stages.seconds["decode"] >= 0.01
    assert set(stages.seconds) == set(STAGES)
