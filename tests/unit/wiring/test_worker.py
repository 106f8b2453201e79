"""What a Python worker does with tasks, and what it keeps."""

import gc
import pickle
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ch_sink.order import State
from ch_sink.stream.run_task import Held
from ch_sink.stream.tasks import RangeTask, ReleaseTask, Task, TaskResult
from ch_sink.table.model import TargetTable
from ch_sink.wiring import worker
from ch_sink.wiring.worker import (
    LARGE,
    Garbage,
    KeptStream,
    Run,
    Work,
    fetched_together,
    garbage,
    kept_stream,
    packed,
    run_group,
    weight,
)
from tests.model import LAYOUTS
from tests.support.harness import ENGINES, target_table

TABLE = target_table(next(iter(LAYOUTS.values())), ENGINES["replacing"])


def task(offsets: int | None, number: int = 0) -> Task:
    if offsets is None:
        return ReleaseTask("s", "t", "id", number, TABLE, State())
    return RangeTask("s", "t", "id", number, TABLE, 0, offsets, State())


@given(
    st.lists(st.tuples(st.none() | st.integers(1, 100_000), st.sampled_from("abc")), max_size=60), st.integers(1, 16)
)
def test_every_task_is_in_one_group_and_groups_weigh_alike(drawn: list[tuple[int | None, str]], slots: int) -> None:
    tasks = [replace(task(offsets), stream=stream) for offsets, stream in drawn]
    groups = packed(tasks, slots)
    assert sorted(number for group in groups for number in group) == list(range(len(tasks)))
    assert all(groups)
    large = [n for n, one in enumerate(tasks) if weight(one) >= LARGE]
    assert [group for group in groups if set(group) & set(large)] == sorted(
        ([n] for n in large), key=lambda group: -weight(tasks[group[0]])
    )
    small = [sum(weight(tasks[n]) for n in group) for group in groups if not set(group) & set(large)]
    assert len(small) <= slots
    assert not small or max(small) - min(small) <= 3 * LARGE


@given(st.lists(st.none() | st.integers(1, 100_000), max_size=60), st.integers(1, 16), st.integers(1, 16))
def test_there_are_no_more_groups_than_may_be(drawn: list[int | None], slots: int, most: int) -> None:
    groups = packed([task(offsets) for offsets in drawn], slots, most)
    assert sorted(number for group in groups for number in group) == list(range(len(drawn)))
    assert len(groups) <= most


def test_small_tasks_of_one_stream_stay_together_as_far_as_they_are_light() -> None:
    def groups_of(stream: str, groups: list[list[int]]) -> list[int]:
        return [sum(tasks[n].stream == stream for n in group) for group in groups]

    tasks = [replace(task(10, n), stream=stream) for n in range(60) for stream in "ab"]
    groups = packed(tasks, 4)
    assert [groups_of(stream, groups) for stream in "ab"] in ([[60, 0], [0, 60]], [[0, 60], [60, 0]])
    tasks = [replace(task(10, n), stream="a") for n in range(1000)]
    assert len(packed(tasks, 4)) == 4
    assert 4 < len(packed(tasks, 100)) < 20
    tasks = [replace(task(10), stream=str(n)) for n in range(100)]
    assert [len(group) for group in packed(tasks, 4)] == [25] * 4


@given(st.lists(st.sampled_from((10, LARGE)), min_size=1, max_size=12))
def test_results_have_the_order_of_the_tasks_and_large_ones_run_alone(drawn: list[int]) -> None:
    running, most = [0], [0]
    lock = threading.Lock()

    def run(config: str, one: Task) -> TaskResult:
        with lock:
            running[0] += 1
            if weight(one) >= LARGE:
                most[0] = max(most[0], running[0])
        time.sleep(0.0001)
        with lock:
            running[0] -= 1
        return config  # type: ignore[return-value]

    work = [(str(number), task(offsets, number)) for number, offsets in enumerate(drawn)]
    assert list(run_group(work, run)) == [config for config, _ in work]
    assert most[0] <= 1


def test_small_tasks_of_one_group_wait_for_their_answers_at_the_same_time() -> None:
    meeting = threading.Barrier(3, timeout=20)

    def run(config: str, one: Task) -> TaskResult:
        meeting.wait()
        return config  # type: ignore[return-value]

    assert list(run_group([(c, task(10)) for c in "abc"], run)) == ["a", "b", "c"]


def test_only_small_tasks_are_prepared_together() -> None:
    prepared: list[str] = []

    def together(work: Sequence[Work]) -> Run:
        prepared.extend(config for config, _ in work)
        return lambda config, _: f"{config} together"  # type: ignore[return-value]

    work = [("a", task(10)), ("b", task(LARGE)), ("c", task(None)), ("d", task(20))]
    found = list(run_group(work, lambda config, _: config, together))  # type: ignore[arg-type, return-value]
    assert found == ["a together", "b", "c together", "d together"]
    assert prepared == ["a", "c", "d"]


LAYOUT = next(iter(LAYOUTS.values()))
TEXT = '{"kafka": {"topic": "t", "bootstrap.servers": "k:9092"}, "clickhouse": {"url": "http://h:8123", "table": "t"}}'


def table(engine: str = "replacing") -> TargetTable:
    return target_table(LAYOUT, ENGINES[engine])


def make(made: list[Any]) -> Any:
    def new(_table: TargetTable, _before: bool) -> Any:
        made.append(object())
        return made[-1]

    return new


def fail(kept: KeptStream, new: Any) -> None:
    with kept.decoders(new) as take:
        take(table(), False)
        raise ZeroDivisionError


def test_a_decoder_is_used_again_for_an_equal_table() -> None:
    kept, made = KeptStream(TEXT), list[Any]()
    for _ in range(3):
        with kept.decoders(make(made)) as take:
            assert take(table(), False) is made[0]
    with kept.decoders(make(made)) as take:
        assert take(table("collapsing"), False) is made[1], "the table has changed"
    with kept.decoders(make(made)) as take:
        assert take(table("collapsing"), True) is made[2], "with before images"


def test_two_tasks_at_once_have_a_decoder_each_and_a_failed_one_leaves_none() -> None:
    kept, made = KeptStream(TEXT), list[Any]()
    with kept.decoders(make(made)) as take, kept.decoders(make(made)) as other:
        assert take(table(), False) is not other(table(), False)
    with pytest.raises(ZeroDivisionError):
        fail(kept, make(made))
    assert len(made) == 2
    with kept.decoders(make(made)) as take, kept.decoders(make(made)) as other:
        take(table(), False)
        other(table(), False)
    assert len(made) == 3


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


@pytest.mark.long
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


def test_what_was_read_together_is_stored_once_the_last_of_its_stream_is_planned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And waits for nothing else: the broker of partition 0 does not answer."""
    stored: list[list[str]] = []
    both = threading.Semaphore(0)

    def name(config: str, one: Task) -> str:
        return f"{config}{one.partition}"

    def store(held: Sequence[Held]) -> None:
        stored.append(sorted(str(one.done) for one in held))
        both.release()

    def alone(one: Task, config: Any) -> Any:
        if one.partition == 0:
            assert both.acquire(timeout=20)
        return name(config, one)

    def hold(one: RangeTask, config: Any) -> Any:
        assert not any(text.startswith(config) for found in stored for text in found), "not before the last one"
        return Held(one, None, None, name(config, one)) if one.partition % 3 else name(config, one)  # type: ignore[arg-type]

    work = [(config, task(10, number)) for number in range(7) for config in "ab"] + [("c", task(10, 1))]
    read: Any = {(config, worker._span(one)): [] for config, one in work if one.partition}
    monkeypatch.setattr(worker, "_read", lambda work: read)
    monkeypatch.setattr(worker, "_opening", lambda config, fetched: nullcontext(config))
    for function, other in (("run_task", alone), ("hold", hold), ("store_held", store)):
        monkeypatch.setattr(worker, function, other)
    assert list(run_group(work, alone, fetched_together)) == [name(config, one) for config, one in work]
    assert sorted(stored) == [["a1", "a2", "a4", "a5"], ["b1", "b2", "b4", "b5"]]
