"""Shared by ``verify``, ``repair`` and ``resync``: options, comparisons, and tables in turn.

A stream that fails does not hold up the others.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ch_sink.cli.output import Output
from ch_sink.errors import ChSinkError, ConfigError, StreamsFailed
from ch_sink.observe.logs import Step

if TYPE_CHECKING:
    from ch_sink.config import Config
    from ch_sink.trust.report import Report
    from ch_sink.trust.subject import Options, Subject
    from ch_sink.trust.topic import Check
    from ch_sink.trust.verify import Comparison
    from ch_sink.wiring.process import Stop

_LOOK = 0.5
"""Seconds between two looks whether a comparison has to wait any longer."""
Truth = Literal["source", "topic"]
_TRUTHS: dict[str, Truth] = {"source": "source", "topic": "topic"}
Against = Annotated[
    str,
    typer.Option(
        "--against",
        metavar="source|topic",
        help="The reference: the database in the section source, the default if the file has one, or the topic.",
        show_default=False,
    ),
]
Examples = Annotated[
    int, typer.Option("--examples", metavar="N", min=0, help="Maximum differing rows shown per table.")
]
Sample = Annotated[
    str,
    typer.Option("--sample", metavar="SHARE", help="Compare only this share of the keys, e.g. 5%.", show_default=False),
]
Where = Annotated[
    str, typer.Option("--where", metavar="SQL", help="Compare the rows that meet this condition.", show_default=False)
]
Patience = Annotated[
    float,
    typer.Option(
        "--patience", metavar="SECONDS", min=0, help="How long to wait for changes that are still on their way."
    ),
]
Parallel = Annotated[
    int,
    typer.Option(
        "--parallel",
        metavar="N",
        min=0,
        help="Processes that read the database; by default 1 for a small table, up to 4 for a large one.",
        show_default=False,
    ),
]
Columns = Annotated[
    str, typer.Option("--columns", metavar="A,B", help="Compare these columns only.", show_default=False)
]


def case_of(config: "Config", against: str, options: "Options", check: "Check") -> "tuple[Subject, Options]":
    """The stream and its table, and against what they are compared. Raises ChSinkError."""
    from ch_sink.trust.wiring import subject_of

    return subject_of(config, check), replace(options, against=truth_of(config, against))


def truth_of(config: "Config", against: str) -> Truth:
    """The reference to compare with. Raises ConfigError."""
    chosen = against or ("source" if config.source is not None else "topic")
    if chosen not in _TRUTHS:
        raise ConfigError(f"--against {against} is not known", hint="Use --against source or --against topic.")
    return _TRUTHS[chosen]


def options_of(examples: int, sample: str, where: str, columns: str, patience: float, parallel: int) -> "Options":
    """The options of a comparison from the command line. Raises ConfigError."""
    from ch_sink.trust.subject import Options

    names = tuple(name.strip() for name in columns.split(",") if name.strip())
    return Options(names, where, share_of(sample), examples, patience=patience, parallel=parallel)


def share_of(text: str) -> float:
    """``5%`` or ``0.05``; all if empty. Raises ConfigError."""
    if not text:
        return 1.0
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ConfigError(f"--sample {text} is not a share of the keys", hint="Write it as 5% or 0.05.")
    return share


def say_to(out: Output, about: str = "") -> Callable[[str], None]:
    """Shows what is being done. ``about``: what the lines begin with."""

    def say(text: str) -> None:
        line = f"{about}: {text}" if about else text
        out.doing(Step(line, text.share) if isinstance(text, Step) else line)

    return say


class EachStream:
    """The streams, and those of them that failed."""

    def __init__(self, out: Output, streams: "Sequence[Config]") -> None:
        self.streams = streams
        self.failed: dict[str, ChSinkError] = {}
        self._out = out
        self._tables: dict[str, str] = {}

    @contextmanager
    def guard(self, config: "Config") -> Iterator[None]:
        """Note an error of one stream, if there are others.

        Raises what concerns all of them: ConfigError, and an error that waiting may resolve.
        """
        try:
            yield
        except ChSinkError as error:
            self._out.progress_done()
            if len(self.streams) < 2:
                raise
            if isinstance(error, ConfigError) or error.temporary:
                raise error.about(config.stream_name) from None
            self.fail(config, error)

    def fail(self, config: "Config", error: ChSinkError) -> None:
        """Go on without this stream."""
        place = config.clickhouse
        self._tables[config.stream_name] = f"{place.database}.{place.table}"
        self.failed[config.stream_name] = error
        self._out.warn(f"{config.stream_name} is skipped: {error}")

    def documents(self) -> list[dict[str, Any]]:
        """Entries of the JSON document for streams that failed."""
        return [
            {"stream": name, "table": self._tables[name], "error": error.message, "next": error.hint}
            for name, error in self.failed.items()
        ]

    def expect_all(self) -> None:
        """Raises StreamsFailed if a stream has failed."""
        if self.failed:
            raise StreamsFailed(self.failed)


@dataclass(slots=True)
class _Turn:
    """One table's comparison that goes on step by step."""

    config: "Config"
    began: float
    """Seconds since 1970."""
    comparison: "Comparison"
    steps: Iterator[None]
    next_look: float = 0.0


class Comparisons:
    """The comparisons of several tables in turn; those that have to wait for their streams do so together."""

    def __init__(self, each: EachStream, begin: "Callable[[Config], Comparison]", stop: "Stop") -> None:
        self._each, self._begin, self._stop = each, begin, stop
        self._waiting: list[_Turn] = []

    def run(self) -> "Iterator[tuple[Config, Report, float]]":
        """Each stream with its report and the time at which its comparison began, as they are done."""
        with ExitStack() as opened:
            for config in self._each.streams:
                yield from self._look()
                with self._each.guard(config):
                    comparison = self._begin(config)
                    opened.callback(comparison.close)
                    turn = _Turn(config, time.time(), comparison, comparison.steps())
                    yield from self._go_on(turn)
            while self._waiting:
                self._stop.wait(_LOOK)
                yield from self._look()

    def _look(self) -> "Iterator[tuple[Config, Report, float]]":
        """Let those go on that wait."""
        waiting, self._waiting = self._waiting, []
        for turn in waiting:
            self._stop.check()
            if time.monotonic() < turn.next_look:
                self._waiting.append(turn)
                continue
            with self._each.guard(turn.config):
                yield from self._go_on(turn)

    def _go_on(self, turn: _Turn) -> "Iterator[tuple[Config, Report, float]]":
        """Go on until the comparison has to wait, or is done."""
        try:
            next(turn.steps)
        except StopIteration:
            report = turn.comparison.report
            turn.comparison.close()
            yield turn.config, report, turn.began
        except BaseException:
            turn.comparison.close()
            raise
        else:
            turn.next_look = time.monotonic() + _LOOK
            self._waiting.append(turn)
