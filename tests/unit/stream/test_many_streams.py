"""A job of thousands of streams: what the driver does for one of them does not depend on how many there are."""

import sys
import threading
from itertools import count

from ch_sink.stream.lanes import ThreadLanes
from tests.support.job import MemoryJob


def _calls(streams: int) -> float:
    """Calls of functions for a stream that is opened and read once."""
    job = MemoryJob(lanes=ThreadLanes())
    for number in range(streams):
        job.add(f"s{number}", 1)
    made = count()

    def note(_frame: object, event: str, _what: object) -> None:
        if event in ("call", "c_call"):
            next(made)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        assert job.run(once=True) == {}
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert all(job.covered(f"s{number}") == {0: 1} for number in range(streams))
    return next(made) / streams


def test_ten_times_the_streams_take_about_ten_times_the_work() -> None:
    few, many = _calls(100), _calls(1000)
    assert many < 2 * few
