"""A worker's long-lived objects are passed over by garbage collections, and this is done a few times only."""

import gc
import pickle
import weakref
from collections.abc import Iterator

import pytest

from ch_sink.wiring.worker import Garbage, garbage, kept_stream


class Cycle:
    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_all_that_is_alive_is_set_aside_when_twice_as_many_streams_have_come(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = [0]
    monkeypatch.setattr(kept_stream, "cache_info", lambda: type("Info", (), {"misses": streams[0]}))
    here, times = Garbage(), []
    monkeypatch.setattr(gc, "freeze", lambda: times.append(streams[0]))
    monkeypatch.setattr(gc, "collect", lambda: None)
    for streams[0] in range(1000):
        here.freeze()
    assert times == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]


def test_garbage_is_collected_first_and_later_garbage_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_stream, "cache_info", lambda: type("Info", (), {"misses": 1}))
    earlier = weakref.ref(Cycle())
    Garbage().freeze()
    assert earlier() is None
    assert gc.get_freeze_count() > 10_000
    later = weakref.ref(Cycle())
    gc.collect()
    assert later() is None


def test_tasks_of_one_process_share_what_they_know() -> None:
    assert garbage() is pickle.loads(pickle.dumps(garbage))()
