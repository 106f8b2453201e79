"""The job without Spark, as a program of its own to be killed: coordinator, tasks and ports are the product's.

``python -m tests.support.plain_job CONFIG OFFSETS SEED [HOST [N]]`` reads what the topic holds, OFFSETS of each
partition at a time, and prints ``begin N`` before each batch and ``end N`` after it. Each batch's plan is stored before
it is carried out: a new process runs a batch that was begun once more, with the same
ranges. Tasks run one after the other, in a drawn order. HOST: the name of the host on which the job believes to run. N:
the process is frozen before this insert.
"""

import json
import os
import random
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

from ch_sink.clickhouse import ClickHouseWriter
from ch_sink.config import load
from ch_sink.stream.batch_plan import OffsetRange
from ch_sink.stream.coordinator import Coordinator
from ch_sink.stream.tasks import Task, TaskResult
from ch_sink.wiring.streams import SharedTopics, stream_ports, stream_settings
from ch_sink.wiring.worker import run_configured


def main(config: str, offsets: str, seed: str, host: str = "", freeze: str = "0") -> None:
    if host:
        socket.gethostname = lambda: host
    _freeze_before(int(freeze))
    settings, rng = load(Path(config)), random.Random(seed)
    text = settings.to_task_json()

    def execute(tasks: Sequence[Task]) -> list[TaskResult]:
        order = rng.sample(range(len(tasks)), len(tasks))
        done = {i: run_configured(text, tasks[i]) for i in order}
        return [done[i] for i in range(len(tasks))]

    plans = Path(config).with_suffix(".plans")
    plans.mkdir(exist_ok=True)
    with closing(SharedTopics()) as topics:
        coordinator = Coordinator(stream_settings(settings), stream_ports(settings, topics))
        coordinator.open()
        coordinator.run_release(execute)
        number = len(list(plans.glob("*.planned")))
        if number and not (plans / f"{number - 1}.done").exists():
            number -= 1
        while ranges := _planned(plans, number, coordinator, int(offsets)):
            _say(f"begin {number}")
            coordinator.run_batch(ranges, execute)
            (plans / f"{number}.done").touch()
            _say(f"end {number}")
            number += 1
        coordinator.close()


def _freeze_before(insert: int) -> None:
    """Stop this process, as SIGSTOP from elsewhere would, just before it sends its nth insert into the target."""
    sent, write = count(1), ClickHouseWriter.write

    def frozen(self: ClickHouseWriter, *given: Any, **options: Any) -> int:
        if next(sent) == insert:
            os.kill(os.getpid(), signal.SIGSTOP)
        return write(self, *given, **options)

    if insert:
        ClickHouseWriter.write = frozen  # type: ignore[method-assign]


def _planned(plans: Path, number: int, coordinator: Coordinator, offsets: int) -> list[OffsetRange]:
    note = plans / f"{number}.planned"
    if note.exists():
        return [OffsetRange(*row) for row in json.loads(note.read_text())]
    topic = coordinator.topic
    before = json.loads((plans / f"{number - 1}.planned").read_text()) if number else []
    at = {**topic.low, **{row[2]: row[4] for row in before}}
    rows = [
        [topic.topic, topic.topic_id, p, at[p], min(at[p] + offsets, topic.high[p]), 0, topic.high[p]]
        for p in sorted(at)
    ]
    if all(start == end for _, _, _, start, end, _, _ in rows):
        return []
    fresh = note.with_suffix(".new")
    fresh.write_text(json.dumps(rows))
    os.replace(fresh, note)
    return [OffsetRange(*row) for row in rows]


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
