"""A job of thousands of streams: what the driver does for one of them does not depend on how many there are."""

import time

from ch_sink.stream.lanes import ThreadLanes
from tests.support.job import MemoryJob


def _cost(streams: int) -> float:
    """Processor time for a stream that is opened and read once, in seconds."""
    job = MemoryJob(lanes=ThreadLanes())
    for number in range(streams):
        job.add(f"s{number}", 1)
    began = time.process_time()
    assert job.run(once=True) == {}
    cost = time.process_time() - began
    assert all(job.covered(f"s{number}") == {0: 1} for number in range(streams))
    return cost / streams


def test_ten_times_the_streams_cost_about_ten_times_as_much() -> None:
    few, many = min(_cost(300), _cost(300)), _cost(3000)
    assert many < 2.5 * few
