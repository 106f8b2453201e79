"""A command's process: its signals and its open files."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ch_sink.wiring.process import Stop, Stopped, run_stoppable

_FRAME = """
import sys, time
from ch_sink.wiring.process import run_stoppable
def work(stop):
    stop.at_forced_end(lambda: print("forced", flush=True))
    print("begun", flush=True)
{work}
sys.exit(run_stoppable(work, exiting=True, grace={grace}))
"""
_OBEYS = """
    while not stop.wait(0.05):
        pass
    print("cleaned up", flush=True)
    return 0
"""
_RAISES = """
    while True:
        try:
            time.sleep(0.05)
            stop.check()
        except Exception:
            print("caught", flush=True)
"""
_HANGS = "    time.sleep(60)"
_SERVES = """
    stop.expected = True
    stop.wait(60)
    return 0
"""


@contextmanager
def started(work: str, grace: float = 30) -> Iterator["subprocess.Popen[str]"]:
    code = _FRAME.format(work=work, grace=grace)
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout.readline() == "begun\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("work", "number", "code", "printed"),
    [
        (_OBEYS, signal.SIGINT, 130, "cleaned up\n"),
        (_OBEYS, signal.SIGTERM, 143, "cleaned up\n"),
        (_RAISES, signal.SIGINT, 130, ""),
        (_SERVES, signal.SIGTERM, 0, ""),
    ],
)
def test_a_signal_ends_the_work_in_order(work: str, number: signal.Signals, code: int, printed: str) -> None:
    with started(work) as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (code, printed)
    assert err.strip().startswith("Stopping.")
    assert "Traceback" not in err


def test_a_second_signal_ends_what_does_not_stop() -> None:
    with started(_HANGS) as process:
        process.send_signal(signal.SIGINT)
        process.stderr.readline()
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=10)
    assert (process.returncode, out) == (130, "forced\n")


def test_two_signals_in_a_row_do_not_wait_for_each_other() -> None:
    for _ in range(10):
        with started(_HANGS) as process:
            process.send_signal(signal.SIGINT)
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=10)
        assert process.returncode in (130, 143)


def test_work_that_does_not_stop_is_ended_after_the_grace() -> None:
    with started(_HANGS, grace=0.2) as process:
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=10)
    assert (process.returncode, out) == (143, "forced\n")


def test_errors_and_codes_of_the_work_are_those_of_the_command() -> None:
    def fails(_stop: Stop) -> int:
        raise LookupError("mine")

    before = signal.getsignal(signal.SIGINT)  # PySpark leaves its own, where a session began in this process
    with pytest.raises(LookupError, match="mine"):
        run_stoppable(fails)
    assert run_stoppable(lambda _stop: 3) == 3
    assert signal.getsignal(signal.SIGINT) is before


def test_outside_the_main_thread_the_work_just_runs() -> None:
    seen: list[object] = []

    def work(_stop: Stop) -> int:
        seen.append(threading.current_thread())
        return 4

    other = threading.Thread(target=lambda: seen.append(run_stoppable(work)))
    other.start()
    other.join()
    assert seen == [other, 4]


def test_no_handler_for_errors_catches_the_stop() -> None:
    assert not issubclass(Stopped, Exception)


def test_a_driver_whose_parent_ends_stops_in_order() -> None:
    """Under `spark-submit` the JVM is the parent, and takes the signals."""
    child = _FRAME.format(work='    stop.with_parent()\n    print("watching", flush=True)' + _OBEYS, grace=30)
    parent = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {child!r}]).wait()"
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert [process.stdout.readline() for _ in range(2)] == ["begun\n", "watching\n"]
    process.kill()
    process.wait()
    with process.stdout as written:  # ends with the grandchild, which holds the other end of the pipe
        assert written.read() == "cleaned up\n"


_CODE = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from ch_sink.errors import ConfigError
from ch_sink.wiring.process import allow_descriptors
try:
    allow_descriptors({streams})
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
except ConfigError as error:
    print(error, error.hint)
"""


def outcome(soft: int, hard: int, streams: int) -> str:
    code = _CODE.format(soft=soft, hard=hard, streams=streams)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    assert outcome(256, 4096, 106) == "4096"


def test_a_limit_that_is_too_low_is_named_with_the_remedy() -> None:
    said = outcome(256, 1024, 1000)
    assert "1000 streams need some 1300 open files, and this process may have 1024" in said
    assert "ulimit -n 1300" in said
