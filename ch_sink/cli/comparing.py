"""What ``verify`` and ``repair`` have in common: their options, and what a comparison is made of."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ch_sink.cli.output import Output
from ch_sink.errors import ConfigError

if TYPE_CHECKING:
    from ch_sink.config import Config
    from ch_sink.trust.stoppable import Check
    from ch_sink.trust.subject import Options, Subject

__all__ = [
    "Against",
    "Columns",
    "Examples",
    "Parallel",
    "Patience",
    "Sample",
    "Where",
    "case_of",
    "options_of",
    "say_to",
    "share_of",
    "truth_of",
]

Truth = Literal["source", "topic"]
_TRUTHS: dict[str, Truth] = {"source": "source", "topic": "topic"}
Against = Annotated[
    str,
    typer.Option(
        "--against",
        metavar="source|topic",
        help="What holds the truth: the database of the section source, or the topic, folded by key.",
        show_default="source if the file names it, else topic",
    ),
]
Examples = Annotated[int, typer.Option("--examples", metavar="N", min=0, help="How many rows to show for each table.")]
Sample = Annotated[
    str, typer.Option("--sample", metavar="SHARE", help="Compare a part of the keys only, e.g. 5%.", show_default=False)
]
Where = Annotated[
    str, typer.Option("--where", metavar="SQL", help="Compare the rows that meet this condition.", show_default=False)
]
Patience = Annotated[
    float,
    typer.Option("--patience", metavar="SECONDS", min=0, help="How long to wait for changes that are still under way."),
]
Parallel = Annotated[
    int,
    typer.Option(
        "--parallel",
        metavar="N",
        min=0,
        help="Processes that read the database.",
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
        raise ConfigError(f"--sample {text} is no part of the keys", hint="Write it as 5% or 0.05.")
    return share


def say_to(out: Output) -> Callable[[str], None]:
    """Shows what is being done, on a terminal."""
    return lambda text: out.progress(text) if out.interactive else None
