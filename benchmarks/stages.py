"""Where a worker's processor time goes: ``python -m benchmarks stages [--workload NAME]… [--events N] [--repeat N]``.

Runs whole tasks (consume, decode, order, merge, insert) in this process, as a Python worker of Spark does, and prints
microseconds of CPU time an event by thread and by stage. CPU time is hardly touched by what else the machine does.
"""

import argparse
import ctypes
import gc
import os
import resource
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow as pa

from benchmarks.machine import describe
from benchmarks.suite.changes import changes
from benchmarks.suite.formats import encoder
from benchmarks.suite.place import DATABASE, PARTITIONS, Place, place
from benchmarks.suite.workloads import WORKLOADS, Workload
from ch_sink.clickhouse import ClickHouseLedger, detect
from ch_sink.config import Config, load
from ch_sink.kafka import range_consumer
from ch_sink.kafka.settings import KafkaSettings
from ch_sink.order import State
from ch_sink.pipeline.guards import Stages
from ch_sink.ports import Claim
from ch_sink.stream.run_task import TaskPorts, run_task
from ch_sink.stream.tasks import RangeTask, Task
from ch_sink.wiring.tasks import batch_decoder, task_ports
from ch_sink.wiring.worker import kept_stream

_TICK = os.sysconf("SC_CLK_TCK")


def fill(where: Place, workload: Workload, events: int) -> str:
    """A topic with the workload's events; its name."""
    made = encoder(workload.form, workload.rows)
    where.registry.ids = {n: {"schema": text} for n, text in made.schemas.items()}
    topic = "".join(c if c.isalnum() else "_" for c in workload.name) + f"_{events}"
    where.fill(topic, made.records(workload.rows, changes(workload.rows, workload.mix, events)))
    return topic


def tasks(where: Place, workload: Workload, topic: str, table: str) -> tuple[Config, list[RangeTask]]:
    """A fresh table, and a task for each partition of the topic."""
    where.table(workload, table)
    config = load(where.config(workload, topic, table))
    target = detect(where.client, DATABASE, table, config.policy())
    ledger = ClickHouseLedger(where.client, DATABASE, config.state_tables.ledger, config.stream_name)
    claim: Claim = ledger.claim("benchmark")
    found = []
    with range_consumer(KafkaSettings(config.kafka.client())) as consumer:
        for partition in range(PARTITIONS):
            _, end = consumer.watermarks(topic, partition)
            task = RangeTask(config.stream_name, topic, "id", partition, target, 0, end, State(), claim=claim, batch=1)
            found.append(task)
    return config, found


def run(config: Config, work: Sequence[RangeTask], stages: Stages) -> int:
    """Carry the tasks out one after the other, as a worker does; the number of records."""
    kept = kept_stream(config.to_task_json())
    records = 0
    for task in work:
        opened: list[TaskPorts] = []
        with ExitStack() as stack:

            def open_ports(wanted: Task, stack: ExitStack = stack, opened: list[TaskPorts] = opened) -> TaskPorts:
                make = stack.enter_context(kept.decoders(lambda table, before: batch_decoder(config, table, before)))
                ports = task_ports(config, wanted, make)
                ports.sink.stages.clock = stages.clock
                opened.append(ports)
                return ports

            done = run_task(task, open_ports)
        for ports in opened:
            for stage, seconds in ports.sink.stages.seconds.items():
                stages.seconds[stage] += seconds
        if done.failure is not None:
            raise done.failure
        records += getattr(done, "records", 0)
    return records


class Threads:
    """CPU seconds by kind of thread, those that have ended included."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._last: dict[int, tuple[str, float]] = {}
        self._first: dict[int, float] = {}
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    @contextmanager
    def watched(self) -> Iterator[Callable[[], dict[str, float]]]:
        """Watches while the block runs; call what it yields afterwards."""
        self._look()
        self._first = {thread: cpu for thread, (_, cpu) in self._last.items()}
        self._thread.start()
        try:
            yield self._found
        finally:
            self._stop.set()
            self._thread.join()
            self._look()

    def _found(self) -> dict[str, float]:
        found: dict[str, float] = defaultdict(float)
        for thread, (name, cpu) in self._last.items():
            found[name] += cpu - self._first.get(thread, 0.0)
        return found

    def _watch(self) -> None:
        while not self._stop.wait(0.1):
            self._look()

    def _look(self) -> None:
        named = {t.native_id: t.name for t in threading.enumerate()}
        for folder in Path("/proc/self/task").iterdir():
            number = int(folder.name)
            try:
                text = (folder / "schedstat").read_text(encoding="ascii")
                comm = (folder / "comm").read_text(encoding="utf-8").strip()
            except OSError:
                continue
            self._last[number] = _kind(named.get(number, ""), comm), int(text.split()[0]) / 1e9


def _kind(name: str, comm: str) -> str:
    if name == "MainThread":
        return "plan"
    if name:
        return name.partition("_")[0]
    return "librdkafka" if comm.startswith("rdk:") else "Arrow and others"


def _forget_peak() -> None:
    """Begin a new peak of resident memory, without what filling the topic has left behind."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _peak() -> float:
    """Peak of resident memory in MiB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def measure(where: Place, workload: Workload, topic: str, number: int) -> dict[str, float]:
    """Microseconds an event by thread and stage; MiB; page faults an event."""
    config, work = tasks(where, workload, topic, f"stages_{number}")
    stages = Stages(time.thread_time)
    _forget_peak()
    before = resource.getrusage(resource.RUSAGE_SELF)
    with Threads().watched() as found:
        records = run(config, work, stages)
    after = resource.getrusage(resource.RUSAGE_SELF)
    scale = 1e6 / records
    user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    figures = {"user": user * scale, "system": system * scale, "whole": (user + system) * scale}
    figures |= {f"thread {name}": cpu * scale for name, cpu in sorted(found().items())}
    figures |= {f"stage {name}": cpu * scale for name, cpu in stages.seconds.items()}
    figures["faults"] = (after.ru_minflt - before.ru_minflt) / records
    figures["MiB"] = _peak()
    return figures


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks stages", description=__doc__)
    parser.add_argument("--workload", action="append", choices=sorted(WORKLOADS), help="default: json")
    parser.add_argument("--events", type=int, default=400_000)
    parser.add_argument("--repeat", type=int, default=3)
    given = parser.parse_args(arguments)
    print(*(f"{name}: {value}" for name, value in describe().items()), sep="\n")
    print("command: python -m benchmarks stages", *arguments)
    with place(None) as where:
        for name in given.workload or ["json"]:
            workload = WORKLOADS[name]
            topic = fill(where, workload, int(given.events * workload.share))
            measure(where, workload, topic, 0)
            found = [measure(where, workload, topic, number + 1) for number in range(given.repeat)]
            print(f"\n{name}: µs of CPU time an event, median (lowest to highest)")
            for figure in sorted({n for one in found for n in one}):
                values = [one.get(figure, 0.0) for one in found]
                print(f"  {figure:28}{statistics.median(values):8.2f}  ({min(values):.2f} to {max(values):.2f})")
    return 0
