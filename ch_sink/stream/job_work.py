"""What a job does in its lanes, beside its loop: it reports the outcome, and changes nothing that the loop knows."""

import logging
from collections.abc import Callable, Sequence

from ch_sink.errors import ChSinkError
from ch_sink.stream.job_stream import JobStream
from ch_sink.stream.lanes import BatchEnded, CallEnded, Changed, Closed, Discovered, Exchanged, Failed, Opened, Report
from ch_sink.stream.pace import Slots, Work
from ch_sink.stream.roster import Roster
from ch_sink.stream.rounds import WriteAll, as_failure, run_together
from ch_sink.stream.tasks import Task, TaskResult
from ch_sink.stream.turn import Batch

log = logging.getLogger("ch_sink")

Reports = Callable[[Report], None]


class JobWork:
    """Each method is one piece of work, and reports once for each stream."""

    def __init__(
        self,
        roster: Roster,
        slots: Slots,
        write: WriteAll,
        discover: Callable[[], Changed] | None,
        *,
        once: bool,
    ) -> None:
        self._roster, self._slots, self._write, self._discover, self._once = roster, slots, write, discover, once

    def exchange(self, report: Reports) -> None:
        """Exchange standings with the ledgers."""
        try:
            self._roster.look()
        except Exception as error:
            log.debug("stream states were not exchanged: %s", error, exc_info=error)
        finally:
            report(Exchanged())

    def discover(self, report: Reports) -> None:
        """Look for topics."""
        assert self._discover is not None
        found = Changed()
        try:
            found = self._discover()
        finally:
            report(Discovered(found))

    def open(self, stream: JobStream, report: Reports) -> None:
        """Open a stream."""
        try:
            topic = stream.open()
            report(Opened(stream, topic, stream.unread(topic, once=self._once)))
        except Exception as error:  # noqa: BLE001 (the stream's failure, whatever it is)
            report(Failed(stream, as_failure(stream.name, error)))

    def close(self, stream: JobStream, report: Reports) -> None:
        """Let a stream's claim go."""
        try:
            stream.close()
            if stream.leaving:
                self._roster.remove(stream.name)
        finally:
            report(Closed(stream))

    def run(self, batch: Batch, work: Work, report: Reports) -> None:
        """Run a batch to its end."""
        left = {stream.name: stream for stream in batch}

        def ended(name: str, error: ChSinkError | None) -> None:
            stream = left.pop(name)
            report(BatchEnded(stream) if error is None else Failed(stream, error))

        def execute(tasks: Sequence[Task]) -> Sequence[TaskResult]:
            try:
                return self._slots.run(work, tasks)
            finally:
                report(CallEnded())

        try:
            rounds = {s.name: s.rounds(ranges) for s, ranges in batch.items()}
            run_together(rounds, execute, ended, self._write)
        except Exception as error:
            log.debug("the executor failed: %s", error, exc_info=error)
            for name, stream in left.items():
                # An error that is raised on purpose would be raised again.
                meant = isinstance(error, ChSinkError)
                report(Failed(stream, as_failure(name, error), executor=not meant, job=meant))
        finally:
            self._slots.done(work)
