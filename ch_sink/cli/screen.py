"""The progress display of `ch_sink run`: one table that redraws on a terminal, a line a minute elsewhere."""

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ch_sink.errors import ConfigError
from ch_sink.model.counts import counted, grouped
from ch_sink.observe.job_view import Album, JobView, Lines
from ch_sink.observe.logs import Format, formatter, kept, logging_to
from ch_sink.observe.stream import StreamView
from ch_sink.wiring.process import Stop

STYLE = {
    "stopped": "bold red",
    "waiting": "yellow",
    "paused": "cyan",
    "opening": "dim",
    "running": "green",
    "idle": "dim",
}
_AROUND = 8
"""Lines of the terminal that are not rows of the table."""
Look = Callable[[], JobView]


@dataclass(frozen=True, slots=True)
class LogOptions:
    """The user's choices for the log."""

    verbose: bool = False
    quiet: bool = False
    file: Path | None = None
    form: Format = "text"
    debug: bool = False

    @property
    def level(self) -> int:
        """The lowest level of the product's own lines."""
        if self.debug or self.verbose:
            return logging.DEBUG
        return logging.WARNING if self.quiet else logging.INFO


class _Printed(logging.Handler):
    """Log lines above a table that redraws."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        style = "red" if record.levelno >= logging.ERROR else "yellow" if record.levelno >= logging.WARNING else "dim"
        self._console.print(Text(self.format(record), style=style), soft_wrap=True)


@contextmanager
def shown(look: Look, options: LogOptions, stop: Stop) -> Iterator[None]:
    """Show the job and its log on standard error for as long as this lasts, and that it is stopping.

    Raises ConfigError if the log's file cannot be written.
    """
    console = Console(file=sys.stderr, highlight=False)
    redraws = console.is_terminal and not console.is_dumb_terminal and options.form == "text" and not options.quiet
    handlers: list[logging.Handler] = [_Printed(console) if redraws else logging.StreamHandler(sys.stderr)]
    if options.file is not None:
        try:
            handlers.append(logging.FileHandler(options.file, encoding="utf-8"))
        except OSError as error:
            raise ConfigError(
                f"--log-file {options.file} cannot be written: {error.strerror}", hint="Choose another file."
            ) from None
    for handler in handlers:
        handler.setFormatter(formatter(options.form))
        if isinstance(handler, logging.FileHandler) or not sys.stderr.isatty():
            handler.addFilter(kept)
    with ExitStack() as closing:
        closing.enter_context(logging_to(handlers, level=options.level, libraries=options.debug))
        if redraws:
            stop.at_forced_end(_leave_terminal)
            closing.enter_context(_telling(stop))
            closing.enter_context(Screen(console, look, lambda: stop.requested))
        if not redraws or options.file is not None:
            closing.enter_context(Lines(look))
        yield


@contextmanager
def _telling(stop: Stop) -> Iterator[None]:
    """The table says that the command is stopping: a line in the middle of it would be overwritten."""
    stop.announced = True
    try:
        yield
    finally:
        stop.announced = False


def _leave_terminal() -> None:
    """Give the cursor back, which the table hides, when the process ends at once."""
    os.write(sys.stderr.fileno(), b"\x1b[?25h\r\n")


class Screen:
    """Redraws the job's streams below the lines that are printed meanwhile."""

    def __init__(self, console: Console, look: Look, stopping: Callable[[], bool], *, every: float = 0.5) -> None:
        self._console, self._look, self._stopping, self._every = console, look, stopping, every
        self._album = Album()
        self._shown: JobView | None = None
        self._live = Live(
            get_renderable=self._render,
            console=console,
            refresh_per_second=4,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _render(self) -> RenderableType:
        if self._shown is None or time.monotonic() - self._shown.time >= self._every:
            self._shown = self._album.add(self._look())
        return rendered(self._shown, self._console.height, stopping=self._stopping())


def rendered(view: JobView, height: int, *, stopping: bool = False) -> RenderableType:
    """The job for a terminal of so many lines."""
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    table.add_column("table", no_wrap=True, overflow="ellipsis", ratio=2)
    table.add_column("state", no_wrap=True)
    for name in ("lag", "records/s", "rows", "dead letters"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("last error", no_wrap=True, overflow="ellipsis", ratio=3)
    room = max(1, height - _AROUND)
    for seen in view.streams[:room]:
        table.add_row(*_cells(seen))
    parts: list[RenderableType] = [_head(view)]
    if view.done is not None and not view.doing:
        # A bar does not end its line by itself.
        parts.append(Padding(ProgressBar(total=1.0, completed=view.done, width=40), 0))
    parts.append(table)
    if len(view.streams) > room:
        parts.append(Text(f"… and {counted(len(view.streams) - room, 'stream')} in a better state", style="dim"))
    if stopping:
        parts.append(Text("Stopping after the running batch. Press Ctrl-C again to end at once.", style="bold"))
    return Group(Text(), *parts)


def _head(view: JobView) -> Text:
    lag = "" if view.lag is None else f", lag {grouped(view.lag)}"
    return Text.assemble(
        (view.phase, "bold"),
        f"   {counted(len(view.streams), 'stream')}{lag}, {grouped(round(view.rate))} records/s",
    )


def _cells(view: StreamView) -> tuple[Text, ...]:
    seen, standing = view.summary, view.standing
    return (
        Text(seen.table or seen.stream),
        Text(standing.state, style=STYLE[standing.state]),
        Text("–" if seen.lag is None else grouped(seen.lag)),
        Text(grouped(round(view.rate))),
        Text(grouped(seen.counts.rows)),
        Text(grouped(seen.counts.dead_letters) if seen.counts.dead_letters else ""),
        Text(standing.error.partition("\n")[0]),
    )
