"""The process of a command: its signals, and its open files.

SIGINT or SIGTERM ends it, whatever it is doing: ordered if it can, at once if it must.

The work runs in a thread of its own and asks `Stop` between its steps, so that no exception is raised in the middle
of an import, a library call or a callback. The main thread only takes signals. The first signal asks the work to stop;
if it has not within `GRACE` seconds, or on a second signal, the process ends itself and what it started.
"""

import os
import resource
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from ch_sink.errors import ConfigError

GRACE = 25.0
"""Seconds from the first signal to a forced end; Kubernetes kills after 30."""

_LOOK = 0.2
"""Longest time until a handler runs, in seconds."""
_PARENT_LOOK = 1.0
"""Seconds between two looks whether the parent process is alive."""
_NOTICE = {
    signal.SIGINT: "\nStopping. Press Ctrl-C again to end at once.\n",
    signal.SIGTERM: "Stopping.\n",
}


class Stopped(BaseException):
    """The work ended because of a signal. No handler for errors may catch it."""


class Stop:
    """Whether the command is to stop, and what has to be ended if it does not."""

    def __init__(self) -> None:
        self.signal: int | None = None
        """The first signal, None before."""
        self.expected = False
        """The command runs until it is stopped, so a signal is its regular end."""
        self.event = threading.Event()
        """Set by the first signal."""
        self.announced = False
        """Something on the screen says that the command is stopping: no line need be written."""
        self._endings: list[Callable[[], object]] = []

    @property
    def requested(self) -> bool:
        """Whether a signal has come."""
        return self.event.is_set()

    @property
    def exit_code(self) -> int:
        """The code that a shell reports for a process that a signal ended: 130 for SIGINT, 143 for SIGTERM."""
        return 128 + (self.signal or 0)

    def request(self, number: int) -> None:
        """Ask the work to stop."""
        self.signal = self.signal or number
        self.event.set()

    def wait(self, seconds: float) -> bool:
        """Wait until a signal comes, at most so long; whether one has come."""
        return self.event.wait(seconds)

    def check(self) -> None:
        """Raise Stopped if a signal has come."""
        if self.requested:
            raise Stopped

    def at_forced_end(self, ending: Callable[[], object]) -> None:
        """Call this, last in first out, if the process has to end before the work has cleaned up."""
        self._endings.append(ending)

    def with_parent(self) -> None:
        """Stop when the parent process ends, as if by SIGTERM.

        Under ``spark-submit`` the JVM is the parent and takes the signal; the driver would go on without it, for good,
        and own the streams.
        """
        parent = os.getppid()

        def watch() -> None:
            while os.getppid() == parent:
                if self.event.wait(_PARENT_LOOK):
                    return
            self.request(signal.SIGTERM)

        threading.Thread(target=watch, name="ch_sink parent", daemon=True).start()

    def force(self) -> None:
        """End the process now."""
        for ending in reversed(self._endings):
            with suppress(Exception):
                ending()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(self.exit_code)


def run_stoppable(work: Callable[[Stop], int], *, exiting: bool = False, grace: float = GRACE) -> int:
    """Run the work until it ends or a signal stops it; returns the exit code.

    An exception of the work is raised here. Outside the main thread, where no signals arrive, the work just runs.
    ``exiting``: the process ends after this, so the handlers stay, and a late signal ends it without a traceback.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        return work(stop)
    finished = threading.Event()
    codes: list[int] = []
    errors: list[BaseException] = []

    def body() -> None:
        try:
            codes.append(work(stop))
        except BaseException as error:  # noqa: BLE001 (raised again in the main thread)
            errors.append(error)
        finally:
            finished.set()

    def watch() -> None:
        stop.event.wait()
        if not finished.wait(grace):
            stop.force()

    def on_signal(number: int, _frame: FrameType | None) -> None:
        # A second signal may interrupt this very function: it must not wait for a lock that the first has taken.
        again = stop.signal is not None
        stop.signal = stop.signal or number
        if again or finished.is_set():
            stop.force()
        if not stop.announced:
            _notify(number)
        stop.event.set()

    threading.Thread(target=watch, name="ch_sink grace", daemon=True).start()
    before = {number: signal.signal(number, on_signal) for number in _NOTICE}
    try:
        threading.Thread(target=body, name="ch_sink", daemon=True).start()
        # The kernel may give a signal to any thread, and then nothing wakes this one, which runs the handlers.
        while not finished.wait(_LOOK):
            pass
    finally:
        if not exiting:
            for number, handler in before.items():
                signal.signal(number, handler)
    if stop.requested and not stop.expected:
        return stop.exit_code
    if errors:
        raise errors[0]
    return codes[0]


def _notify(number: int) -> None:
    # Written past Python's buffers: a signal may come in the middle of a print.
    with suppress(OSError):
        os.write(2, _NOTICE[signal.Signals(number)].encode())


_BASE = 300
"""Spark's own, and those of a process without streams."""
_PER_STREAM = 1
"""Streams share their clients in the driver; one to spare for each."""


def allow_descriptors(streams: int) -> None:
    """Raise the process's own limit to what the system allows. Raises ConfigError if that is too low."""
    needed = _BASE + _PER_STREAM * streams
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and (soft < hard or hard == resource.RLIM_INFINITY):
        wanted = needed * 4 if hard == resource.RLIM_INFINITY else hard
        if wanted > soft:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    if resource.RLIM_INFINITY != soft < needed:
        raise ConfigError(
            f"{streams} streams need some {needed} open files, and this process may have {soft}",
            hint=f"Raise the limit (`ulimit -n {needed}`, LimitNOFILE in systemd), or split the streams over jobs.",
        )
