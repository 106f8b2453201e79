"""What stands between planning and the ports: the execution of a task, and the time of its stages."""

import threading
import time

import pyarrow as pa
import pytest

from ch_sink.memory import MemoryLedger
from ch_sink.pipeline.guards import STAGES, Fencing, Stages
from ch_sink.pipeline.plans import Ports
from ch_sink.ports import StoredRows


class Lookup:
    def __init__(self) -> None:
        self.asked_under: list[bool] = []

    def fetch(self, keys: pa.Table, below: pa.Array | None = None) -> StoredRows:
        self.asked_under.append(True)
        return StoredRows(keys)


def test_the_execution_begins_before_the_first_question_and_only_once() -> None:
    ledger, begun = MemoryLedger("s"), 0

    def begin():  # type: ignore[no-untyped-def]
        nonlocal begun
        begun += 1
        return ledger.begin("id", 0, None, "1/0")

    fencing, inner = Fencing(begin), Lookup()
    lookup = fencing.ports(Ports(inner)).lookup
    assert lookup is not None
    assert fencing.fence is None
    for _ in range(2):
        lookup.fetch(pa.table({"id": [1]}))
    assert begun == 1
    assert fencing.fence is not None
    assert fencing.begin() is fencing.fence
    assert len(inner.asked_under) == 2


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
