"""One server process: started under the keeper, so that it ends with the tests however they end."""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]
_USER = "nobody"


class Missing(Exception):
    """This machine cannot run the part; the text says why."""


class Daemon:
    """A process whose output goes to ``<name>.log`` in ``folder``."""

    def __init__(self, name: str, folder: Path, command: Sequence[str], environ: Mapping[str, str] | None = None):
        self.name = name
        self.log = folder / f"{name}.log"
        self._command = list(command)
        self._environ = {**os.environ, **(environ or {}), "PYTHONPATH": str(_ROOT)}
        self._keeper: subprocess.Popen[bytes] | None = None

    def start(self, ready: Callable[[], bool], seconds: float = 180.0) -> None:
        """Start, and wait until ``ready`` says so. Raises RuntimeError with the log's end."""
        with self.log.open("ab") as log:
            self._keeper = subprocess.Popen(
                [sys.executable, "-m", "ch_sink.local.daemons", "keep", *self._command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._environ,
                cwd=self.log.parent,
                start_new_session=True,
            )
        deadline = time.monotonic() + seconds
        while not ready():
            if self._keeper.poll() is not None or time.monotonic() > deadline:
                code = self._keeper.poll()
                self.stop()
                raise RuntimeError(f"{self.name} did not start (exit code {code}):\n{self.tail()}")
            time.sleep(0.1)

    def tail(self, characters: int = 3000) -> str:
        """The end of the log."""
        return self.log.read_text(encoding="utf-8", errors="replace")[-characters:] if self.log.exists() else ""

    def stop(self, first: Sequence[str] = ()) -> None:
        """End the process; ``first`` is a command that asks it in its own way."""
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        if first:
            subprocess.run(first, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False)
        if keeper.stdin is not None:
            keeper.stdin.close()
        try:
            keeper.wait(30)
        except subprocess.TimeoutExpired:
            keeper.kill()
            keeper.wait()

    def kill(self) -> None:
        """End the process as a power cut would: the kernel takes it down with its keeper."""
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        keeper.send_signal(signal.SIGKILL)
        keeper.wait()
        if keeper.stdin is not None:
            keeper.stdin.close()


def unprivileged(command: Sequence[str]) -> list[str]:
    """The command as a user without rights where this one is root: PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return list(command)
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise Missing("root needs setpriv (util-linux) to start a database as another user")
    group = pwd.getpwnam(_USER).pw_gid
    # The kernel forgets the keeper's wish to take its child down when the child changes its user.
    drop = [f"--reuid={_USER}", f"--regid={group}", "--clear-groups", "--pdeathsig", "KILL"]
    return [setpriv, *drop, "--", *command]


def own_folder(name: str) -> Path:
    """A fresh folder that the user of ``unprivileged`` owns and can reach."""
    folder = Path(tempfile.mkdtemp(prefix=f"ch_sink-{name}-"))
    if os.getuid() == 0:
        user = pwd.getpwnam(_USER)
        os.chown(folder, user.pw_uid, user.pw_gid)
    return folder
