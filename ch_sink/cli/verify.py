"""``ch_sink verify`` and ``ch_sink repair``: whether tables equal their source, and how they are made so."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ch_sink.cli.options import AsJson, ConfigFiles, Only, Overrides, expecting_a_ledger, load_all, one_stream
from ch_sink.cli.output import Output
from ch_sink.errors import ChSinkError, ClickHouseError, ConfigError, SourceError

if TYPE_CHECKING:
    from ch_sink.config import Config
    from ch_sink.trust.mend import Mended
    from ch_sink.trust.report import Report
    from ch_sink.trust.subject import Options, Subject

__all__ = ["repair", "verify"]

log = logging.getLogger("ch_sink")

_TRUTHS: dict[str, Literal["source", "topic"]] = {"source": "source", "topic": "topic"}
Against = Annotated[
    str,
    typer.Option(
        "--against",
        metavar="source|topic",
        help="What holds the truth: the database of the section source, or the topic, folded by key.",
        show_default="source if the file names it, else topic",
    ),
]
AgainstCopies = Annotated[
    str,
    typer.Option(
        "--against",
        metavar="source|topic|COPY",
        help="What holds the truth: the database of the section source; the topic, folded by key; or a copy of the "
        "table, as database.table or FILE.parquet, where {table} stands for the table's name.",
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


def verify(
    configs: ConfigFiles,
    against: AgainstCopies = "",
    examples: Examples = 10,
    sample: Sample = "",
    where: Where = "",
    columns: Columns = "",
    patience: Patience = 30.0,
    parallel: Parallel = 0,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="PATH", help="Write the report as one HTML file.")
    ] = None,
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Go on: part after part of each table, again and again.")
    ] = False,
    load: Annotated[
        str,
        typer.Option("--load", metavar="SHARE", help="Share of the time that --continuous compares; then it rests."),
    ] = "10%",
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", min=0, help="End --continuous after N rounds.", show_default=False)
    ] = 0,
    only: Only = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Compare each table with its source while the stream runs; exit code 1 if anything differs.

    The rows of the source are put into a shadow table and compared by checksums. Nothing is locked, and the table is
    not changed.
    """
    from ch_sink.trust.against_copy import compared_with_copy
    from ch_sink.trust.html import page
    from ch_sink.trust.report import document, lines
    from ch_sink.trust.verify import verified
    from ch_sink.trust.wiring import subject_of

    out = Output(as_json=as_json)
    options = _options(examples, sample, where, columns, patience, parallel)
    copy = against if against not in ("", *_TRUTHS) else ""
    if continuous:
        if copy:
            raise ConfigError(f"--continuous does not compare with {copy}, which stands still", hint="Leave it out.")
        if sample or where or columns or html:
            raise ConfigError(
                "--continuous compares whole tables", hint="Leave out --sample, --where, --columns, --html."
            )
        _continuous(out, load_all(out, configs, overrides, only), against, options, _share(load), rounds)
        return
    if html is not None:
        _expect_writable(html)
    reports: list[Report] = []
    streams = load_all(out, configs, overrides, only)
    if copy and "{table}" not in copy:
        one_stream(streams, configs[0])
    for config in streams:
        began = time.time()
        with expecting_a_ledger(config):
            if copy:
                report = compared_with_copy(subject_of(config), _named(copy, config), options, _say(out))
            else:
                with verified(*_case(config, against, options), _say(out)) as found:
                    report = found.report
        out.progress_done()
        reports.append(report)
        if not (sample or where or columns or copy):
            _record(config, [report], began)
        for line in lines(report):
            out.say(line)
    out.document(document(reports))
    if html is not None:
        html.write_text(page(reports), encoding="utf-8")
    if not all(report.equal for report in reports):
        raise typer.Exit(1)


def repair(
    configs: ConfigFiles,
    against: Against = "",
    apply: Annotated[bool, typer.Option("--apply", help="Write; without it, only say what would be written.")] = False,
    examples: Examples = 10,
    where: Where = "",
    patience: Patience = 30.0,
    parallel: Parallel = 0,
    only: Only = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Make each table equal to its source again, by the rows that ``verify`` finds to differ.

    They are written under versions that every later change beats. Without --apply nothing is written.
    """
    from ch_sink.trust.mend import repaired
    from ch_sink.trust.report import lines

    out = Output(as_json=as_json)
    options = _options(examples, "", where, "", patience, parallel)
    documents = []
    ok = True
    for config in load_all(out, configs, overrides, only):
        with expecting_a_ledger(config):
            done = repaired(*_case(config, against, options), apply=apply, say=_say(out))
        out.progress_done()
        documents.append(done.as_json())
        ok = ok and done.all_mended
        for line in [*lines(done.report), *_outcome(done)]:
            out.say(line)
    out.document({"streams": documents})
    if not ok:
        raise typer.Exit(1)


def _expect_writable(path: Path) -> None:
    """Raises ConfigError if the file cannot be written, before hours of comparison end with that."""
    try:
        path.open("a").close()
    except OSError as error:
        raise ConfigError(
            f"--html {path} cannot be written: {error.strerror}", hint="Name a file in a folder that is there."
        ) from None


def _record(config: "Config", reports: "list[Report]", began: float) -> None:
    """Note what the comparison found, for `status`, metrics and the page; a user who may not write goes without."""
    from ch_sink.discovery.wiring import states_by_ledger
    from ch_sink.trust.continuous import compared

    name = config.stream_name
    try:
        [(states, _)] = states_by_ledger([config])
        before = states.read([name])[name].compared
        states.compare({name: compared(reports, began, time.time(), before)})
    except ClickHouseError as error:
        log.debug("the comparison is not recorded: %s", error)


def _continuous(
    out: Output, configs: "Sequence[Config]", against: str, options: "Options", share: float, rounds: int
) -> None:
    """Compare part after part of each table in turn. Raises typer.Exit(1) if the last round found a difference."""
    from ch_sink.discovery.wiring import states_by_ledger
    from ch_sink.trust.continuous import Rotation
    from ch_sink.trust.report import lines

    def rotation(config: "Config") -> Rotation:
        subject, chosen = _case(config, against, options)
        [(states, _)] = states_by_ledger([config])
        name = config.stream_name
        return Rotation(subject, chosen, lambda c: states.compare({name: c}), states.read([name])[name].compared)

    with expecting_a_ledger(configs[0]) if configs else nullcontext():
        turning = [rotation(config) for config in configs]
    while left := [one for one in turning if not rounds or one.rounds < rounds]:
        for one in left:
            began = time.monotonic()
            try:
                report = one.step()
            except (SourceError, ChSinkError) as error:
                if not (error.temporary or isinstance(error, SourceError)) or rounds:
                    raise
                out.warn(f"{error}; it is tried again")
            else:
                for line in lines(report) if not report.equal else []:
                    out.say(line)
                upto = one.before.equal_up_to if one.before is not None else 0.0
                moment = f"{datetime.fromtimestamp(upto, UTC):%H:%M:%S}" if upto else "–"
                out.progress(f"{report.stream}: {report.rows} rows compared; equal up to {moment}")
            time.sleep(min(600.0, (time.monotonic() - began) * (1 / share - 1)))
    out.progress_done()
    found = [one.before.as_json() for one in turning if one.before is not None]
    out.document({"streams": found})
    if any(one["differences"] for one in found):
        raise typer.Exit(1)


def _outcome(done: "Mended") -> list[str]:
    from ch_sink.model.counted import counted

    said = []
    if done.rows:
        rows = counted(done.rows, "row")
        said = [f"  repaired {rows}"] if done.applied else [f"  would repair {rows}: --apply"]
    outcomes = (
        (done.left, "still differ: the stream may have changed them meanwhile; verify again"),
        (done.too_new, "left alone: their versions are above all that the stream has written"),
        (done.unmendable, "cannot be removed: the engine has no mark for deleted rows"),
        (done.unreadable, "left alone: the source cannot give all their columns; repair them --against topic"),
    )
    return [*said, *(f"  {counted(number, 'row')} {text}" for number, text in outcomes if number)]


def _case(config: "Config", against: str, options: "Options") -> "tuple[Subject, Options]":
    from ch_sink.trust.wiring import subject_of

    chosen = against or ("source" if config.source is not None else "topic")
    if chosen not in _TRUTHS:
        raise ConfigError(f"--against {against} is not known", hint="Use --against source or --against topic.")
    return subject_of(config), replace(options, against=_TRUTHS[chosen])


def _named(copy: str, config: "Config") -> str:
    return copy.replace("{table}", config.clickhouse.table)


def _options(examples: int, sample: str, where: str, columns: str, patience: float, parallel: int) -> "Options":
    from ch_sink.trust.subject import Options

    names = tuple(name.strip() for name in columns.split(",") if name.strip())
    return Options(names, where, _share(sample), examples, patience=patience, parallel=parallel)


def _share(text: str) -> float:
    """``5%`` or ``0.05``; all if empty."""
    if not text:
        return 1.0
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ConfigError(f"--sample {text} is no part of the keys", hint="Write it as 5% or 0.05.")
    return share


def _say(out: Output) -> Callable[[str], None]:
    return lambda text: out.progress(text) if out.interactive else None
