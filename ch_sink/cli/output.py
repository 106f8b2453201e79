"""All printing: text for people, or one JSON document for programs.

Results go to standard output; progress, warnings and errors to standard error.
"""

import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ch_sink.errors import ChSinkError
from ch_sink.observe.logs import Step
from ch_sink.wiring.process import Stop

Level = Literal["ok", "warn", "fail"]
_WIDE = 200
"""Columns of a table that goes to a file or pipe."""
_EVERY = 10.0
"""Seconds between two lines of progress that do not go to a terminal."""
_ERASE = "\r\x1b[2K"
_WIDTH = 20
"""Characters of a progress bar."""
_STYLE: Mapping[str, str] = {"ok": "green", "warn": "yellow", "fail": "bold red"}


class Output:
    """Console or JSON. With ``as_json`` everything but :meth:`document` and standard error is left out."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        # Piped text is not wrapped, so that paths and SQL can be pasted.
        width = None if sys.stdout.isatty() else _WIDE
        self._out = Console(file=sys.stdout, highlight=False, soft_wrap=width is not None, width=width)
        self._err = Console(file=sys.stderr, highlight=False, soft_wrap=True)
        self._next_line = time.monotonic() + _EVERY
        self._line: Literal["none", "passing", "kept"] = "none"
        """The text on the cursor's line."""

    @property
    def interactive(self) -> bool:
        """Whether standard error is a terminal, so that a progress line may rewrite itself."""
        return self._err.is_terminal

    def say(self, text: str = "", style: str | None = None) -> None:
        """A line of the result."""
        if not self.as_json:
            self.progress_done()
            self._out.print(Text(text, style=style or ""))

    def note(self, text: str) -> None:
        """A line about what is being done."""
        self.progress_done()
        self._err.print(Text(text, style="dim"))

    def warn(self, text: str) -> None:
        """Something that the reader should know, although the command continues."""
        self.progress_done()
        self._err.print(Text.assemble(("warning: ", "yellow"), text))

    def progress(self, text: str) -> None:
        """A line that replaces the one before it on a terminal, and follows it elsewhere."""
        if self.interactive:
            self._rewrite(Text(text), passing=False)
        else:
            self._err.print(Text(text))

    def doing(self, text: str) -> None:
        """Report the step of a long command: every one on a terminal, with a bar if it is a `Step`; a line each ten
        seconds elsewhere.
        """
        if self.interactive:
            share = text.share if isinstance(text, Step) else None
            self._rewrite(Text(text) if share is None else Text.assemble(*_bar(share), text), passing=True)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _EVERY
            self._err.print(Text(text))

    def progress_done(self) -> None:
        """End the progress line: what :meth:`progress` showed stays, what was being done is erased."""
        if self._line != "none":
            self._err.file.write(_ERASE if self._line == "passing" else "\n")
            self._err.file.flush()
            self._line = "none"

    def _rewrite(self, line: Text, *, passing: bool) -> None:
        line.truncate(self._err.width - 1)
        self._err.file.write(_ERASE)
        self._err.print(line, end="")
        self._line = "passing" if passing else "kept"

    def sql(self, text: str) -> None:
        """SQL, ready to paste."""
        if not self.as_json:
            self._out.print(Text(text), soft_wrap=True)

    def clear(self) -> None:
        """Empty the screen, on a terminal."""
        if not self.as_json and self._out.is_terminal:
            self._out.clear()

    def table(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[object]],
        styles: Sequence[str] = (),
    ) -> None:
        """A table; numbers are right-aligned, with grouped thousands. None is shown as a dash.

        ``styles``: one for each row.
        """
        if self.as_json:
            return
        grid = Table(header_style="bold", box=None, pad_edge=False)
        for place, name in enumerate(columns):
            numeric = any(isinstance(row[place], int | float) for row in rows)
            grid.add_column(name, justify="right" if numeric else "left", overflow="fold")
        for place, row in enumerate(rows):
            grid.add_row(*(Text(_cell(value)) for value in row), style=styles[place] if styles else None)
        self._out.print(grid, soft_wrap=False)

    def finding(self, level: Level, title: str, detail: str, remedy: str | None = None) -> None:
        """One line of a check, with the remedy below it."""
        if self.as_json:
            return
        mark = Text(f"{level:<5}", style=_STYLE[level])
        self._out.print(Text.assemble(mark, (f"{title}: ", "bold"), detail), soft_wrap=True)
        if remedy and level != "ok":
            for line in remedy.splitlines():
                self._out.print(Text(f"        {line}"), soft_wrap=True)

    def document(self, content: Mapping[str, Any] | Sequence[Any]) -> None:
        """The result as JSON, on ``as_json`` only."""
        if self.as_json:
            self._out.file.write(json.dumps(content, indent=2, default=str) + "\n")

    @contextmanager
    def documenting(self, stop: Stop, content: Callable[[], Mapping[str, Any]]) -> Iterator[None]:
        """The result as JSON in the end; if a signal ends the command before, what is known by then."""
        said = False

        def say(**more: Any) -> None:
            nonlocal said
            if not said:
                said = True
                self.document({**content(), **more})

        stop.at_forced_end(lambda: say(interrupted=True))
        try:
            yield
        except BaseException:
            if stop.requested:
                say(interrupted=True)
            raise
        say()

    def error(self, error: ChSinkError, *, debug: bool = False) -> None:
        """Print the error and its next step, and the traceback if requested."""
        self.progress_done()
        if debug:
            self._err.print(Text("".join(traceback.format_exception(error)).rstrip(), style="dim"))
        self._err.print(Text.assemble(("error: ", "bold red"), str(error)))
        if error.hint:
            self._err.print(Text.assemble(("next: ", "bold"), error.hint))

    def crash(self, error: Exception, *, debug: bool) -> None:
        """An unexpected error."""
        self.progress_done()
        if debug:
            self._err.print(Text("".join(traceback.format_exception(error)).rstrip(), style="dim"))
        first = (str(error).splitlines() or [""])[0]
        self._err.print(Text.assemble(("error: ", "bold red"), f"unexpected {type(error).__name__}: {first}"))
        if not debug:
            self._err.print(Text.assemble(("next: ", "bold"), "run the command again with --debug to see where"))


def _bar(share: float) -> tuple[tuple[str, str], ...]:
    """A bar, and the share in percent."""
    full = round(share * _WIDTH)
    return ("━" * full, "green"), ("─" * (_WIDTH - full), "dim"), (f" {share:4.0%}  ", "bold")


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}".replace(",", " ")
    if isinstance(value, float):
        return f"{value:,.1f}".replace(",", " ")
    return str(value)
