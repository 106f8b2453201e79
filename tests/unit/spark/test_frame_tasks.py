"""Which ranges of a DataFrame come to the driver, and how much of their rows."""

from collections.abc import Mapping

import pyarrow as pa
import pytest

from ch_sink.order import State
from ch_sink.spark.frame_tasks import runs, sent, small_ones
from ch_sink.stream.tasks import RangeTask
from ch_sink.wiring.worker import ALL, SMALL
from tests.unit.spark.test_change_rows import table


def task(partition: int, offsets: int) -> RangeTask:
    return RangeTask("s", "t", "id", partition, table(), 0, offsets, State())


@pytest.mark.parametrize(
    ("offsets", "rows", "small"),
    [
        ({0: 1, 1: SMALL}, {0: 1, 1: SMALL}, {0, 1}),
        ({0: SMALL + 1, 1: 5}, {0: 1, 1: 5}, {1}),
        # Most rows of partition 0 were applied before.
        ({0: 5, 1: 5}, {0: SMALL + 1, 1: 5}, {1}),
        (dict.fromkeys(range(40), SMALL), dict.fromkeys(range(40), SMALL), set(range(ALL // SMALL))),
        ({}, {}, set()),
    ],
)
def test_small_ranges_are_few_rows_together(offsets: dict[int, int], rows: Mapping[int, int], small: set[int]) -> None:
    assert small_ones([task(p, n) for p, n in offsets.items()], rows) == small


def test_rows_are_sent_whole_or_not_at_all() -> None:
    rows = pa.table({"partition": [1, 1, 1, 2], "value": [b"a", None, b"c" * 900, b"d"]})
    found = {p: sent(iter([batch]), 1_000) for p, batch in runs(iter(rows.to_batches()), "partition")}
    assert {p: pa.ipc.open_stream(part).read_all() for p, part in found.items() if part is not None} == {
        1: rows.slice(0, 3),
        2: rows.slice(3),
    }
    assert sent(iter(rows.to_batches(max_chunksize=1)), 900) is None
