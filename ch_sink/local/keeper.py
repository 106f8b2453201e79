"""Runs a daemon for a parent process and takes it down with the parent.

``python -m ch_sink.local.keeper COMMAND…`` starts the command and waits. The command is ended when this
process's standard input closes (the parent ended, however it did) or when it gets SIGTERM; on Linux also when this
process itself is killed. Exits with the command's code.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import FrameType

GRACE_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1


def keep(command: Sequence[str]) -> int:
    """Run the command until it ends or the parent does; returns its exit code."""
    # Ignored in this process only: Ctrl-C is for the parent, which closes the pipe when it is ready.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_die_with_parent)

    def end(_signal: int, _frame: FrameType | None) -> None:
        raise SystemExit

    signal.signal(signal.SIGTERM, end)
    try:
        while child.poll() is None:
            readable, _, _ = select.select([sys.stdin], [], [], 0.5)
            if readable and not os.read(sys.stdin.fileno(), 4096):
                break
    except SystemExit:
        pass
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return _end(child)


def _end(child: "subprocess.Popen[bytes]") -> int:
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
    return child.wait()


def _die_with_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1:]))
