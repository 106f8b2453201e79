"""Histories in the batches of a DataFrame, which are repeated, cut otherwise, lost and killed: the table is equal."""

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from ch_sink.errors import ConfigError, DataLoss, StreamFailed
from ch_sink.model.change import Records
from ch_sink.model.policy import policy_of
from ch_sink.spark.frame_stream import FrameStream, Known, Span
from ch_sink.stream.claims import forget
from ch_sink.stream.ports import StreamPorts
from ch_sink.stream.run_task import Held, range_steps, release, store_held
from ch_sink.stream.tasks import RangeDone, RangeTask, Task, TaskResult
from ch_sink.wiring.tasks import NoHistory
from tests.support.cases import Case, cases, drawn, faults_of_run, memory_run
from tests.support.hand import Event, mysql
from tests.support.harness import Run
from tests.support.local_runner import LocalRunner
from tests.support.memory_fed import MemoryFed

Batch = dict[int, tuple[int, int]]
"""Partition → the offsets [start, end) that a DataFrame holds."""


class Died(Exception):
    """The process is gone, or Spark has cancelled the batch."""


@dataclass
class Frames:
    """A stream fed by DataFrames; each life is a process with a FrameStream of its own."""

    run: Run | MemoryFed
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    brokers: bool = True
    deaths: float = 0.15
    """How likely a step of a task is the last one of its process."""
    small: int = 0
    """Offsets of the largest range that is stored together with others."""

    def __post_init__(self) -> None:
        self.topic = self.run.stream.topic
        self.stream: FrameStream | None = None
        self.batch: Batch = {}
        self.lives = 0
        self.shared = 0
        """Ranges that were stored together with others."""
        ports = self.run.stream.ports()
        ports = replace(ports, records=self._read, history=ports.history if self.brokers else NoHistory)
        self.ports, self.local = ports, LocalRunner(self.run.stream.settings, ports)

    @property
    def known(self) -> Known:
        if not self.brokers:
            return Known(self.topic.name)
        return Known("id", self.topic.ends, lambda p, first, end: bool(len(self.topic.read(p, first, end))))

    def apply(self, batch: Batch) -> None:
        """What the function of ``foreachBatch`` does with these offsets."""
        self.batch = batch
        spans = dict(self._spans())
        if not spans:
            return
        if self.stream is None:
            self.lives += 1
            ports = StreamPorts(
                self.ports.open_ledger(), self.ports.admin, self.topic, self.ports.pending, self.ports.group
            )
            self.stream = FrameStream(replace(self.run.stream.settings, chunk_offsets=64 if self.small else 8), ports)
            self.stream.open(self.known, max(spans) + 1, self._execute)
        self.stream.apply(self.known, spans, self._execute)

    def end(self, *, killed: bool = False) -> None:
        made, self.stream = self.stream, None
        if made is not None:
            if killed and made._coordinator is not None:
                forget(self.run.stream.settings.name, made._coordinator.run_id)
            else:
                made.close()

    def _spans(self) -> Iterator[tuple[int, Span]]:
        for p, (start, end) in self.batch.items():
            found = self.topic.read(p, start, end)
            if len(found):
                yield p, self._span(p, int(found.offsets[0]), int(found.offsets[-1]) + 1)

    def _span(self, partition: int, start: int, end: int) -> Span:
        found = self.topic.read(partition, start, end)
        return Span(int(found.offsets[0]), end, len(found), part=lambda offset: self._span(partition, offset, end))

    def _read(self, partition: int, first: int, end: int) -> Records:
        start, stop = self.batch[partition]
        found = self.topic.read(partition, first, end)
        assert all(start <= offset < stop for offset in found.offsets), "records that the DataFrame does not hold"
        return found

    def _execute(self, tasks: Sequence[Task]) -> list[TaskResult]:
        done = [self._run(task) for task in tasks]
        held = [one for one in done if isinstance(one, Held)]
        self._perhaps_die()
        if held:
            store_held(held)
            self.shared += len(held) if len(held) > 1 else 0
        self._perhaps_die()
        return [one.done if isinstance(one, Held) else one for one in done]

    def _run(self, task: Task) -> TaskResult | Held:
        if not isinstance(task, RangeTask):
            return release(task, self.local.open_task)
        steps = range_steps(task, self.local.open_task, may_hold=task.end - task.start <= self.small)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                done: RangeDone | Held = end.value
                return done
            self._perhaps_die()

    def _perhaps_die(self) -> None:
        if self.rng.random() < self.deaths:
            raise Died


def read_in_slices(frames: Frames) -> None:
    """Read the whole topic in batches, as Spark may cut and repeat them, with and without its checkpoint."""
    rng, topic = frames.rng, frames.topic
    low = {p: int(r.offsets[0]) if len(r) else topic.ends[p] for p, r in topic.partitions.items()}
    checkpoint = dict(low)
    again: Batch | None = None
    while again or any(checkpoint[p] < topic.ends[p] for p in low):
        batch = again if again and rng.random() >= 0.5 else drawn_batch(rng, checkpoint, topic.ends, frames.small or 40)
        try:
            frames.apply(batch)
        except Died:
            frames.end(killed=rng.random() < 0.7)
            again = batch
            continue
        again = None
        checkpoint = {p: batch[p][1] if p in batch else at for p, at in checkpoint.items()}
        if rng.random() < 0.1:
            frames.apply(batch)  # Spark did not come to note that it was done
        if rng.random() < 0.05:
            checkpoint = {p: rng.randint(low[p], at) for p, at in checkpoint.items()}
        if rng.random() < 0.1:
            frames.end()
    frames.deaths = 0.0
    frames.apply({p: (low[p], end) for p, end in topic.ends.items()})
    frames.end()


def drawn_batch(rng: random.Random, checkpoint: dict[int, int], ends: dict[int, int], longest: int) -> Batch:
    batch = {p: (at, min(ends[p], at + rng.randint(1, longest))) for p, at in checkpoint.items() if rng.random() < 0.8}
    return {p: span for p, span in batch.items() if span[0] < span[1]}


def faults(
    case: Case, *, brokers: bool = True, shared: Counter[str] | None = None, draw: int | None = None
) -> list[str]:
    """What is wrong at the end.

    Args:
        shared: small ranges of several partitions are stored together, and counted by the engine of their table.
        draw: seed of the batches, by default the history's.
    """
    past, _ = drawn(case)
    run = memory_run(case, past)
    frames = Frames(run, random.Random(case.seed if draw is None else draw), brokers)
    if shared is not None:
        if len(frames.topic.ends) < 2:
            return []
        frames.deaths, frames.small = 0.08, 8
    read_in_slices(frames)
    if shared is not None:
        shared[case.engine] += frames.shared
    return faults_of_run(case, past, run)


def faulty(
    chosen: Iterable[Case],
    *,
    brokers: bool = True,
    refused: list[Case] | None = None,
    shared: Counter[str] | None = None,
) -> list[str]:
    found = []
    for case in chosen:
        try:
            wrong = faults(case, brokers=brokers, shared=shared)
        except (ConfigError, DataLoss, StreamFailed) as error:
            wrong = [f"{type(error).__name__}: {error}"]
            if refused is not None and "brokers" in (error.hint or ""):
                refused.append(case)
                wrong = []
        except Exception as error:  # noqa: BLE001 (a crash is a finding like any other)
            wrong = [f"{type(error).__name__}: {error}"]
        found += [f"{case}: {wrong[0]}"] if wrong else []
    return found


def first_of(seeds: range) -> list[object]:
    """The first one here, the others in the long run."""
    return [seeds[0], *(pytest.param(seed, marks=pytest.mark.long) for seed in seeds[1:])]


@pytest.mark.parametrize("first", first_of(range(7_000, 7_120, 4)))
def test_tables_equal_their_source_however_batches_are_cut_and_repeated(first: int) -> None:
    assert faulty(cases(first, 4)) == []


def test_a_batch_that_was_longer_before_it_died_is_read_again_in_its_epoch() -> None:
    """Rows of an epoch that the ledger does not know are its own."""
    [case] = [case for case in cases(7_012, 1) if case.engine == "append"]
    assert faults(case, draw=7_012_004) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("first", "many"),
    [(7_060, 14), *(pytest.param(first, 80, marks=pytest.mark.long) for first in range(7_000, 7_240, 80))],
)
def test_tables_equal_their_source_where_small_ranges_are_stored_together(first: int, many: int) -> None:
    shared = Counter[str]()
    assert faulty(cases(first, many), shared=shared) == []
    assert min(shared[engine] for engine in ("replacing", "collapsing", "append")) > 0, shared


@pytest.mark.long
def test_without_brokers_a_table_equals_its_source_or_the_batch_is_refused() -> None:
    """Repeats that only earlier records show, gaps between offsets and tables of every change need the brokers."""
    refused: list[Case] = []
    assert faulty(cases(7_000, 90), brokers=False, refused=refused) == []
    assert len(refused) < 75


def test_records_below_the_beginning_of_the_stream_are_not_taken_for_applied() -> None:
    case = Case(7_003, "replacing")
    run = memory_run(case, drawn(case)[0])
    frames = Frames(run, deaths=0.0)
    p, end = max(frames.topic.ends.items(), key=lambda item: item[1])
    frames.apply({p: (end - 4, end)})
    with pytest.raises(DataLoss, match="the stream began above offset"):
        frames.apply({p: (0, end)})
    frames.end()


@pytest.mark.parametrize("brokers", [True, False])
@pytest.mark.parametrize("repeated", [0, 2])
@pytest.mark.parametrize(("gap", "brokers_alone"), [(0, True), (1, False)])
def test_a_batch_that_begins_below_the_ledger_and_lacks_records_above_it_is_refused(
    gap: int, brokers_alone: bool, repeated: int, brokers: bool
) -> None:
    """Of offsets within a batch, a topic of which nothing is asked may have had all. A repeated row is one."""
    case = Case(7_003, "replacing")
    frames = Frames(memory_run(case, drawn(case)[0]), deaths=0.0, brokers=brokers)
    p = next(p for p, r in frames.topic.partitions.items() if len(r) > 8 and r.offsets[-1] - r.offsets[0] == len(r) - 1)
    low, end = int(frames.topic.partitions[p].offsets[0]), frames.topic.ends[p]
    frames.apply({p: (low, low + 4)})
    rows = end - low - 2 + repeated
    span = Span(low, end, rows, repeated, part=lambda at: Span(at + 2 * (gap == 0), end, end - at - 2))
    assert frames.stream is not None
    frames.batch = {p: (low, end)}
    if brokers and not brokers_alone:
        frames.stream.apply(frames.known, {p: span}, frames._execute)
    else:
        with pytest.raises(
            DataLoss, match="lacks 2 of the offsets" if gap else f"{low + 4} is the next .* at {low + 6}"
        ):
            frames.stream.apply(frames.known, {p: span}, frames._execute)
    frames.end()


BY_OFFSET = policy_of(truncate="apply", version_strategy="kafka_offset")
BY_POSITION = policy_of(truncate="apply")


def change(key: int, big: str, at: int, **source: Any) -> Event:
    return mysql("u", {"id": key}, None, {"id": key, "big": big}, at, **source)


def door(
    *, offsets: bool, partitions: int = 1, brokers: bool = True, engine: str = "replacing"
) -> tuple[MemoryFed, Frames]:
    """A topic, and the stream that DataFrames of it feed."""
    fed = MemoryFed(engine, partitions=partitions, policy=BY_OFFSET if offsets else BY_POSITION)
    return fed, Frames(fed, brokers=brokers, deaths=0.0)


def shown(fed: MemoryFed, *partitions: int, limit: int = 1_000) -> Batch:
    """What a query reads next of these partitions."""
    batch = {p: (fed.read[p], min(fed.topic.ends[p], fed.read[p] + limit)) for p in partitions}
    fed.read.update({p: end for p, (_, end) in batch.items()})
    return batch


@pytest.mark.parametrize("brokers", [False, True])
def test_where_positions_order_partitions_come_in_any_batch(brokers: bool) -> None:
    """A small table shows some of its partitions later; keys may also have moved there while older changes wait."""
    fed, frames = door(offsets=False, brokers=brokers)
    fed.send(0, *(change(key, "old", 100 + key) for key in range(6)))
    frames.apply(shown(fed, 0, limit=2))
    fed.send(2, change(4, "moved", 300))
    frames.apply(shown(fed, 2))
    fed.send(1, change(7, "new", 400), change(0, "newer", 401))
    frames.apply(shown(fed, 1))
    frames.apply(shown(fed, 0))
    frames.end()
    assert fed.view() == {0: "newer", 1: "old", 2: "old", 3: "old", 4: "moved", 5: "old", 7: "new"}


def test_a_partition_that_comes_late_has_the_epochs_of_the_others() -> None:
    """A truncate deletes what came before it there, and a source that began again goes on there."""
    fed, frames = door(offsets=False, brokers=False)
    fed.send(0, change(1, "old", 100), mysql("t", None, None, None, 500), change(2, "new", 600))
    frames.apply(shown(fed, 0))
    fed.send(1, change(3, "truncated", 400), change(4, "new", 700))
    frames.apply(shown(fed, 1))
    fed.send(2, change(2, "newer", 800))
    frames.apply(shown(fed, 2))
    frames.end()
    assert fed.view() == {2: "newer", 4: "new"}
    fed, frames = door(offsets=False)
    fed.send(0, change(1, "old", 9_000), change(1, "failed over", 100))
    frames.apply(shown(fed, 0))
    fed.send(1, change(1, "moved", 200))
    frames.apply(shown(fed, 1))
    frames.end()
    assert fed.view() == {1: "moved"}


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_table_without_a_key_takes_batches_of_one_partition_only(partitions: int) -> None:
    """Whether the topic has one, the brokers say; a batch may show one of several. One may be added later."""
    fed, frames = door(offsets=False, partitions=partitions, engine="append")
    rows = [mysql("c", None, None, {"id": 1, "big": "equal"}, at) for at in (100, 110, 120)]
    fed.send(0, *rows)
    if partitions == 1:
        frames.apply(shown(fed, 0))
        fed.send(1, rows[-1])
    with pytest.raises(StreamFailed, match="carry no key, so changes of a row may be in any of its partitions"):
        frames.apply(shown(fed, 2 - partitions))
    frames.end()
    assert len(fed.stream.table.rows) == 3 * (partitions == 1)


def test_without_brokers_offsets_order_one_partition_only() -> None:
    fed, frames = door(offsets=True, brokers=False)
    fed.send(0, change(1, "old", 100))
    frames.apply(shown(fed, 0))
    fed.send(2, change(1, "new", 900))
    with pytest.raises(StreamFailed, match="without brokers it is unknown which changes of others are unread") as found:
        frames.apply(shown(fed, 2))
    assert "Name the brokers" in (found.value.hint or "")
    frames.end()
    assert fed.view() == {1: "old"}


@pytest.mark.parametrize("partitions", [1, 2])
def test_where_offsets_order_an_added_partition_waits_for_the_former_ones(partitions: int) -> None:
    """A batch that lacks older changes of moved keys is refused whole; `run` reads them, and the query goes on."""
    fed, frames = door(offsets=True, partitions=partitions)
    fed.send(0, *(change(1, f"old{i}", 100 + i) for i in range(6)))
    frames.apply(shown(fed, 0, limit=3))
    fed.send(2 * partitions - 1, change(1, "new", 900))
    for p in range(partitions, 2 * partitions - 1):
        fed.send(p)
    batch = shown(fed, 0, limit=2)
    frames.apply(batch)
    added = {**shown(fed, 0, limit=0), **shown(fed, 2 * partitions - 1)}
    with pytest.raises(StreamFailed, match=rf"has {2 * partitions} partitions instead of {partitions}") as found:
        frames.apply(added)
    assert "`ch_sink run`" in (found.value.hint or "")
    frames.end()
    assert fed.view() == {1: "old4"}
    for _ in range(5):
        fed.poll()
    fed.runner.stop()
    assert fed.view() == {1: "new"}
    frames.apply({0: (5, 6), 2 * partitions - 1: (0, 1)})
    fed.send(0, change(2, "stays", 950))
    fed.send(2 * partitions - 1, change(1, "newer", 960))
    frames.apply({0: (6, 7), 2 * partitions - 1: (1, 2)})
    frames.end()
    assert fed.view() == {1: "newer", 2: "stays"}


def test_where_offsets_order_a_batch_to_the_ends_is_applied_whole() -> None:
    """The former partitions first: what the added ones have is newer, and what the former ones get from then on."""
    fed, frames = door(offsets=True)
    fed.send(0, *(change(key, "old", 100 + key) for key in (9, 8, 7, 6, 1)))
    frames.apply(shown(fed, 0, limit=1))
    fed.send(1)
    fed.send(2, change(1, "new", 900), change(3, "new", 901))
    frames.apply(shown(fed, 0, 1, 2))
    assert fed.view() == {9: "old", 8: "old", 7: "old", 6: "old", 1: "new", 3: "new"}
    fed.send(0, change(9, "newer", 950))
    fed.send(2, change(1, "newer", 960))
    frames.apply(shown(fed, 0, 2))
    frames.end()
    assert fed.view() == {9: "newer", 8: "old", 7: "old", 6: "old", 1: "newer", 3: "new"}


def test_an_added_partition_alone_in_a_batch_is_applied() -> None:
    fed, frames = door(offsets=True)
    fed.send(0, change(1, "old", 100))
    frames.apply(shown(fed, 0))
    fed.send(1)
    fed.send(2, change(1, "new", 900))
    frames.apply(shown(fed, 2))
    frames.end()
    assert fed.view() == {1: "new"}


def test_where_keys_may_move_between_former_partitions_nothing_unread_is_applied() -> None:
    """Two partitions become three: the batch does not show which of its records were sent before."""
    fed, frames = door(offsets=True, partitions=2)
    fed.send(0, change(1, "old", 100))
    frames.apply(shown(fed, 0))
    fed.send(0, change(2, "older", 200))
    fed.send(1, change(2, "newer", 300))
    fed.send(2, change(1, "new", 400))
    with pytest.raises(StreamFailed, match="has 3 partitions instead of 2"):
        frames.apply(shown(fed, 0, 1, 2))
    frames.end()
    assert fed.view() == {1: "old"}


def test_a_range_that_was_begun_beyond_a_batch_does_not_keep_the_batch_from_its_other_partitions() -> None:
    fed, frames = door(offsets=False, partitions=2)
    fed.send(0, change(1, "a", 100), change(2, "a", 101))
    fed.send(1, change(3, "a", 102))
    frames.apply({0: (0, 1)})
    frames.deaths = 1.0
    with pytest.raises(Died):
        frames.apply({0: (1, 2)})
    frames.end(killed=True)
    frames.deaths = 0.0
    frames.apply({0: (0, 1), 1: (0, 1)})
    assert fed.view()[3] == "a"
    frames.apply({0: (0, 2), 1: (0, 1)})
    frames.end()
    assert fed.view() == {1: "a", 2: "a", 3: "a"}
