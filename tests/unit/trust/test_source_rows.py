"""The processes that read a source: they leave Ctrl-C to the one that started them, and end with it."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from multiprocessing import active_children
from pathlib import Path
from typing import Any, cast

import pytest

from ch_sink.snapshot import Part
from ch_sink.trust.source_rows import load_parts, still_wanted
from ch_sink.wiring.process import Stopped

ROOT = Path(__file__).resolve().parents[3]
PARTS = [Part("1"), Part("2"), Part("3")]


@dataclass(frozen=True)
class Slow:
    """A filling that goes on until nobody wants it any more."""

    folder: Path

    def fill(self, part: Part) -> int:
        blocked = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        (self.folder / f"{os.getpid()}").write_text("deaf" if blocked else "hears")
        for _ in still_wanted(range(600)):
            time.sleep(0.1)
        return 1


def begun(folder: Path, many: int) -> list[int]:
    """The processes that read, once there are so many."""
    deadline = time.monotonic() + 30
    while len(found := [p for p in folder.iterdir() if p.read_text()]) < many:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return [int(path.name) for path in found]


@pytest.mark.long
def test_a_command_that_is_to_stop_does_not_wait_for_the_processes(tmp_path: Path) -> None:
    def check() -> None:
        if len(list(tmp_path.iterdir())) == 2:
            raise Stopped

    began = time.monotonic()
    with pytest.raises(Stopped):
        load_parts(cast(Any, Slow(tmp_path)), PARTS, 2, lambda _: None, check)
    assert time.monotonic() - began < 20
    assert {path.read_text() for path in tmp_path.iterdir()} == {"deaf"}
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert active_children() == []


@pytest.mark.long
def test_the_processes_end_with_a_command_that_is_killed(tmp_path: Path) -> None:
    words = (
        "import sys; from pathlib import Path; from tests.unit.trust import test_source_rows as t\n"
        "if __name__ == '__main__': t.load_parts(t.Slow(Path(sys.argv[1])), t.PARTS, 2, print)"
    )
    command = subprocess.Popen([sys.executable, "-c", words, str(tmp_path)], cwd=ROOT, start_new_session=True)
    processes = begun(tmp_path, 2)
    command.kill()
    command.wait()
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{process}").exists() for process in processes):
        assert time.monotonic() < deadline, "a process still reads"
        time.sleep(0.05)
