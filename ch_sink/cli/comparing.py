"""What ``verify`` and ``repair`` have in common: their options, and what a comparison is made of."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ch_sink.cli.each_stream import EachStream
from ch_sink.cli.output import Output
from ch_sink.errors import ConfigError
from ch_sink.observe.step import Step

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
        help="Reference to compare with: the database in section source, or the topic.",
        show_default="source if the file has that section, else topic",
    ),
]
Examples = Annotated[int, typer.Option("--examples", metavar="N", min=0, help="Differing rows shown for each table.")]
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
        "--patience", metavar="SECONDS", min=0, help="How long to wait for changes that have not arrived yet."
    ),
]
Parallel = Annotated[
    int,
    typer.Option(
        "--parallel",
        metavar="N",
        min=0,
        help="Number of processes that read the database.",
        show_default="1 for a small table, up to 4 for a large one",
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
    """What holds the truth. Raises ConfigError."""
    chosen = against or ("source" if config.source is not None else "topic")
    if chosen not in _TRUTHS:
        raise ConfigError(f"--against {against} is not known", hint="Use --against source or --against topic.")
    return _TRUTHS[chosen]


def options_of(examples: int, sample: str, where: str, columns: str, patience: float, parallel: int) -> "Options":
    """What the command line says of the comparison. Raises ConfigError."""
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
            report = turn.comparison.found.report
            turn.comparison.close()
            yield turn.config, report, turn.began
        except BaseException:
            turn.comparison.close()
            raise
        else:
            turn.next_look = time.monotonic() + _LOOK
            self._waiting.append(turn)
