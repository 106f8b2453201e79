"""A terminal for tests: runs a program in a pseudo-terminal, and knows what its screen shows."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_CODE = re.compile(r"\x1b\[(\??)([\d;]*)([A-Za-z])")


def _take_terminal() -> None:
    """Make standard input the terminal that Ctrl-C comes from."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    """A program in a terminal of this size. ``lines`` is all that it shows, what scrolled away included."""

    def __init__(
        self, command: Sequence[str], *, width: int = 100, height: int = 24, environ: Mapping[str, str] | None = None
    ) -> None:
        self._primary, secondary = pty.openpty()
        self.resize(width, height)
        self.process = subprocess.Popen(
            [sys.executable, *command],
            stdin=secondary,
            stdout=secondary,
            stderr=secondary,
            cwd=ROOT,
            env={
                **{k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS", "LINES")},
                "TERM": "xterm-256color",
                **(environ or {}),
            },
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(secondary)
        self.raw = ""
        self.lines: list[str] = [""]
        self._row = self._column = 0
        self._read = 0

    def resize(self, width: int, height: int) -> None:
        """Change the window's size."""
        fcntl.ioctl(self._primary, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def press(self, keys: bytes) -> None:
        """Type."""
        os.write(self._primary, keys)

    def until(self, seen: Callable[[], object], seconds: float = 30.0) -> None:
        """Read on until something is shown."""
        deadline = time.monotonic() + seconds
        while not seen():
            assert time.monotonic() < deadline, self.text
            assert self._more(0.05) or self.process.poll() is None, self.text

    def end(self, seconds: float = 30.0) -> int:
        """Read to the program's end; returns its exit code."""
        deadline = time.monotonic() + seconds
        while self._more(0.1) or self.process.poll() is None:
            assert time.monotonic() < deadline, self.text
        os.close(self._primary)
        return self.process.wait()

    @property
    def text(self) -> str:
        """All lines."""
        return "\n".join(self.lines)

    def _more(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._primary], [], [], seconds)
        try:
            piece = os.read(self._primary, 1 << 16) if ready else b""
        except OSError:  # the other side was closed
            return False
        self.raw += piece.decode("utf-8", "replace")
        self._show()
        return bool(piece)

    def _show(self) -> None:
        while self._read < len(self.raw):
            rest = self.raw[self._read : self._read + 32]
            if rest[0] != "\x1b":
                self._put(rest[0])
                self._read += 1
                continue
            code = _CODE.match(rest)
            if code is None:
                return  # the rest of it has not come yet
            self._obey(code[2], code[3])
            self._read += code.end()

    def _put(self, sign: str) -> None:
        if sign == "\r":
            self._column = 0
        elif sign == "\n":
            self._row += 1
            while len(self.lines) <= self._row:
                self.lines.append("")
        else:
            line = self.lines[self._row].ljust(self._column)
            self.lines[self._row] = line[: self._column] + sign + line[self._column + 1 :]
            self._column += 1

    def _obey(self, number: str, what: str) -> None:
        if what == "A":
            self._row = max(0, self._row - int(number or 1))
        elif what == "K":
            line = self.lines[self._row]
            self.lines[self._row] = "" if number == "2" else line[: self._column]
        elif what not in "mhl":
            raise AssertionError(f"a code that this terminal does not know: {number}{what}")
