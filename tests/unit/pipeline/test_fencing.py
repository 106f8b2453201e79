"""When a task's execution begins."""

import pyarrow as pa

from ch_sink.memory import MemoryLedger
from ch_sink.pipeline.guards import Fencing
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
