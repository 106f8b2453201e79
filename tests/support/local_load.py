"""A backfill's waves in this process: the ranges one after the other, their runs sorted as Spark sorts them."""

from collections.abc import Callable
from dataclasses import dataclass, field

from ch_sink.clickhouse import ClickHouseDeadLetters, ClickHouseWriter, Client
from ch_sink.clickhouse.filled_by import filled_by
from ch_sink.pipeline.target import Target
from ch_sink.stream.bulk import BulkPorts, Piece, Run, Wave, WaveDone, read_piece, store_units
from ch_sink.stream.tasks import RangeTask
from ch_sink.trust.subject import Subject

__all__ = ["LocalLoad"]


@dataclass
class LocalLoad:
    """See `ch_sink.stream.bulk.Load`."""

    client: Client
    subject: Subject
    letters: ClickHouseDeadLetters
    slots: int = 2
    block: int = 1_000_000
    waves: list[Wave] = field(default_factory=list)
    stored: Callable[[int], None] = lambda wave: None
    """Called with the number of a wave that is stored and not recorded."""

    def __call__(self, wave: Wave, /) -> WaveDone:
        self.waves.append(wave)
        runs: list[Run] = []
        pieces = [self._read(task, number, runs) for number, task in enumerate(wave.tasks)]
        runs.sort(key=lambda run: (run.unit, run.order))
        table = wave.tasks[0].table
        target, writer = Target.of(table, self.subject.settings.policy), ClickHouseWriter(self.client, table)
        blocks, rows = store_units(
            runs, wave, target, writer, lambda: filled_by(self.client, table, wave.label), self.block
        )
        self.stored(wave.number)
        return WaveDone(tuple(pieces), blocks, rows)

    def _read(self, task: RangeTask, number: int, runs: list[Run]) -> Piece:
        subject = self.subject
        ports = BulkPorts(
            subject.settings.policy, subject.decoder, subject.topic.chunks, subject.topic.history, self.letters
        )
        steps = read_piece(task, number, ports)
        while True:
            try:
                runs.append(next(steps))
            except StopIteration as end:
                piece: Piece = end.value
                return piece
