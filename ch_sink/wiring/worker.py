"""Tasks of many streams in one Python worker: packed into groups, and run with what the process keeps of each stream.

Decoding is a function of records and profile; what a decoder keeps besides (parsed schemas, layouts) never changes a
value. It is used by one task at a time.

PySpark's daemon collects garbage after each task (`pyspark.daemon`). Going over the objects of all imported modules and
kept streams takes 50 to 100 ms of processor time, more than the task itself where a job has many small tables: what a
worker holds for good is kept out of it.
"""

import gc
import heapq
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import lru_cache

from confluent_kafka import Message

from ch_sink.config import Config
from ch_sink.discovery.wiring import kafka_settings
from ch_sink.kafka import KafkaSettings, Span, range_consumer
from ch_sink.pipeline.plans import BatchDecoder
from ch_sink.stream.run_task import Held, OpenPorts, TaskPorts, hold, run_task, store_held
from ch_sink.stream.tasks import RangeDone, RangeTask, Task, TaskResult, weight
from ch_sink.table.model import TargetTable
from ch_sink.wiring.tasks import batch_decoder, task_ports

log = logging.getLogger("ch_sink")

LARGE = 20_000
"""Offsets from which a task fills a worker: it reads, plans and inserts at once, and holds whole chunks in memory."""
_TOGETHER = 2 * LARGE
"""Weight up to which the small tasks of one stream are in one group."""
_STREAMS = 512
"""Streams of which a worker keeps something; the one that was used longest ago is forgotten."""

Make = Callable[[TargetTable, bool], BatchDecoder]
_AT_ONCE = 4
"""Small tasks that run at once: they wait for Kafka and ClickHouse most of the time."""

Work = tuple[str, Task]
"""JSON of the stream's Config, and the task."""
Run = Callable[[str, Task], TaskResult]
SMALL = 2_000
"""Offsets of the largest range that is read together with others."""
ALL = 50_000
"""Offsets of all ranges that are read together."""
BYTES = 32 << 20
"""Bytes of all their records, which a worker holds at once."""

_Read = dict[tuple[str, Span], list[Message]]
"""Configuration and span → its records."""


def packed(tasks: Sequence[Task], slots: int, most: int | None = None) -> list[list[int]]:
    """The numbers of the tasks in groups, one for each Spark task, the heaviest first.

    A large task is a group of its own, so that Spark can start it wherever a slot is free. The others are in at most so
    many groups as there are slots. Light ones of one stream stay together: they share inserts.

    ``most``: how many groups there are at most, whatever is in them.
    """
    slots = min(slots, most or slots)
    streams: dict[str, list[list[int]]] = {}
    alone: list[list[int]] = []
    for number, task in enumerate(tasks):
        (alone if weight(task) >= LARGE else streams.setdefault(task.stream, [])).append([number])

    def weighs(group: Sequence[int]) -> int:
        return sum(weight(tasks[number]) for number in group)

    pieces: list[list[int]] = []
    for own in streams.values():
        pieces += _spread(own, min(slots, 1 + sum(map(weighs, own)) // _TOGETHER), weighs)
    groups = [*alone, *_spread(pieces, slots, weighs)]
    return sorted(_spread(groups, most or len(groups), weighs), key=lambda group: (-weighs(group), group))


def _spread(pieces: Sequence[list[int]], most: int, weighs: Callable[[Sequence[int]], int]) -> list[list[int]]:
    """The pieces in at most so many groups of about the same weight: each goes to the one that is lightest so far."""
    groups: list[list[int]] = [[] for _ in range(min(max(most, 1), len(pieces)))]
    lightest = [(0, number) for number in range(len(groups))]
    for piece in sorted(pieces, key=lambda piece: (-weighs(piece), piece)):
        so_far, group = heapq.heappop(lightest)
        groups[group] += piece
        heapq.heappush(lightest, (so_far + weighs(piece), group))
    return groups


class KeptStream:
    """One stream in this worker."""

    def __init__(self, text: str) -> None:
        self.config = Config.from_task_json(text)
        self._lock = threading.Lock()
        self._idle: dict[bool, list[tuple[TargetTable, BatchDecoder]]] = {False: [], True: []}

    @contextmanager
    def decoders(self, make: Make) -> Iterator[Make]:
        """Takes decoders for a task: a kept one if it is for the same table, else what ``make`` makes."""
        taken: list[tuple[bool, TargetTable, BatchDecoder]] = []

        def take(table: TargetTable, before: bool) -> BatchDecoder:
            with self._lock:
                kept = self._idle[before].pop() if self._idle[before] else None
            decoder = kept[1] if kept is not None and kept[0] == table else make(table, before)
            taken.append((before, table, decoder))
            return decoder

        yield take
        # Not after an exception.
        with self._lock:
            for before, table, decoder in taken:
                self._idle[before].append((table, decoder))


@lru_cache(maxsize=_STREAMS)
def kept_stream(text: str) -> KeptStream:
    """The objects that this process keeps for the stream with this configuration. ``text``: JSON of its Config."""
    return KeptStream(text)


def run_configured(config: str, task: Task) -> TaskResult:
    """Carry a task out over real ports. ``config``: JSON of the stream's Config, secrets included."""
    with _opening(config) as open_ports:
        return run_task(task, open_ports)


@contextmanager
def _opening(config: str, fetched: Sequence[Message] | None = None) -> Iterator[OpenPorts]:
    """``fetched``: the records of the task's range, if they have been read."""
    with ExitStack() as stack:

        def open_ports(wanted: Task) -> TaskPorts:
            kept = kept_stream(config)
            decoder = stack.enter_context(
                kept.decoders(lambda table, before: batch_decoder(kept.config, table, before))
            )
            return task_ports(kept.config, wanted, decoder, fetched)

        yield open_ports


class Gathering:
    """Ranges of one stream, which are stored together once the last of them is planned."""

    def __init__(self, tasks: int) -> None:
        self.tasks = tasks
        self._planned, self._held, self._lock = 0, list[Held](), threading.Lock()

    def add(self, outcome: RangeDone | Held) -> RangeDone:
        """One more is planned, or done already. Returns what it has come to, or will when the last one is added."""
        with self._lock:
            self._planned += 1
            if isinstance(outcome, Held):
                self._held.append(outcome)
            due = self._planned == self.tasks and bool(self._held)
        if due:
            store_held(self._held)
        return outcome.done if isinstance(outcome, Held) else outcome


def run_group(
    work: Sequence[Work], run: Run, together: Callable[[Sequence[Work]], Run] | None = None
) -> Iterable[TaskResult]:
    """The results in the order of the tasks. Large tasks run one after the other, before the small ones.

    ``together``: prepares what these small tasks have in common, and returns how each of them runs.
    """
    results: dict[int, TaskResult] = {}
    small: list[int] = []
    for number, (config, task) in enumerate(work):
        if weight(task) >= LARGE or len(work) == 1:
            results[number] = run(config, task)
        else:
            small.append(number)
    if small:
        if together is not None:
            run = together([work[number] for number in small])
        with ThreadPoolExecutor(min(_AT_ONCE, len(small)), thread_name_prefix="ch_sink task") as pool:
            results |= zip(small, pool.map(lambda number: run(*work[number]), small), strict=True)
    return [results[number] for number in range(len(work))]


def fetched_together(work: Sequence[Work]) -> Run:
    """Read the small ranges of these tasks in one assignment; returns how each task runs.

    What was read together is little: so may be what is planned and not stored, and ranges of one stream share inserts.
    A range that cannot be read this way is read by its own task, which knows what to do about it; none waits for it.
    """
    try:
        read = _read(work) if len(work) > 1 else {}
    except Exception as error:
        # Such as a configuration that is wrong: the task that has it fails with it.
        log.debug("ranges are read one by one: %s", error, exc_info=error)
        read = {}

    gatherings = {config: Gathering(tasks) for config, tasks in Counter(config for config, _ in read).items()}

    def run(config: str, task: Task) -> TaskResult:
        fetched = read.pop((config, _span(task)), None) if isinstance(task, RangeTask) and _is_small(task) else None
        with _opening(config, fetched) as open_ports:
            if fetched is None or not isinstance(task, RangeTask) or gatherings[config].tasks == 1:
                return run_task(task, open_ports)
            planned = hold(task, open_ports)
        return gatherings[config].add(planned)

    return run


def _read(work: Sequence[Work]) -> _Read:
    clusters: dict[KafkaSettings, dict[tuple[str, int], tuple[str, Span]]] = {}
    left = ALL
    for config, task in work:
        if _is_small(task) and (span := _span(task)).end - span.start <= left:
            left -= span.end - span.start
            spans = clusters.setdefault(kafka_settings(kept_stream(config).config), {})
            # Streams of several source tables may read different ranges of one topic.
            spans.setdefault((span.topic, span.partition), (config, span))
    found: _Read = {}
    for kafka, spans in clusters.items():
        if len(spans) > 1:
            with range_consumer(kafka) as consumer:
                read = consumer.together([span for _, span in spans.values()], BYTES // len(clusters))
            found |= {(config, span): read[span] for config, span in spans.values() if span in read}
    return found


def _is_small(task: Task) -> bool:
    return isinstance(task, RangeTask) and task.end - task.start <= SMALL


def _span(task: Task) -> Span:
    assert isinstance(task, RangeTask)
    return Span(task.topic, task.partition, task.start, task.end)


class Garbage:
    """The objects of this process that garbage collections pass over."""

    def __init__(self) -> None:
        self._streams = 0

    def freeze(self) -> None:
        """Leave out all that is alive now, if twice as many streams have come as at the last time.

        What is left out and no longer used is still freed, except for cycles. So this may happen a few times only.
        """
        streams = kept_stream.cache_info().misses
        if streams >= max(1, 2 * self._streams):
            self._streams = streams
            gc.collect()
            gc.freeze()


_here = Garbage()


def garbage() -> Garbage:
    """The one of this process. Spark ships what the functions of a task refer to, except for modules' functions."""
    return _here
