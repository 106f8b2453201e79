"""``ch_sink verify``: whether tables equal their source."""

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ch_sink.cli.comparing import (
    Against,
    Columns,
    Comparisons,
    EachStream,
    Examples,
    Parallel,
    Patience,
    Sample,
    Where,
    case_of,
    options_of,
    say_to,
    share_of,
)
from ch_sink.cli.options import AsJson, ConfigFiles, Only, Overrides, load_all
from ch_sink.cli.output import Output
from ch_sink.errors import ChSinkError, ClickHouseError, ConfigError

if TYPE_CHECKING:
    from ch_sink.config import Config
    from ch_sink.ports import Compared
    from ch_sink.trust.report import Report
    from ch_sink.trust.subject import Options
    from ch_sink.wiring.process import Stop

log = logging.getLogger("ch_sink")

_AGAIN = 10.0
"""Seconds before the turn after one in which a comparison failed."""


def verify(
    context: typer.Context,
    configs: ConfigFiles,
    against: Against = "",
    examples: Examples = 10,
    sample: Sample = "",
    where: Where = "",
    columns: Columns = "",
    patience: Patience = 30.0,
    parallel: Parallel = 0,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write the report to this HTML file.")
    ] = None,
    continuous: Annotated[
        bool, typer.Option("--continuous", help="Verify continuously, one key range at a time.")
    ] = False,
    load: Annotated[
        str,
        typer.Option("--load", metavar="SHARE", help="Share of the time that --continuous spends comparing."),
    ] = "10%",
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", min=0, help="End --continuous after N rounds.", show_default=False)
    ] = 0,
    only: Only = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Compare each table with its source while the stream runs; exit code 1 if anything differs.

    The rows of the source are copied into a temporary table and compared by checksums. The table is not changed, and
    nothing is locked (SQL Server needs row versions for that).
    """
    out, stop = Output(as_json=as_json), context.obj
    options = options_of(examples, sample, where, columns, patience, parallel)
    whole = not (sample or where or columns)
    if continuous and (html or not whole):
        raise ConfigError("--continuous compares whole tables", hint="Leave out --sample, --where, --columns, --html.")
    if html is not None:
        _expect_writable(html)
    streams = load_all(out, configs, overrides, only)
    if continuous:
        _continuous(out, stop, streams, against, options, share_of(load), rounds)
    else:
        _once(out, stop, streams, against, options, whole=whole, html=html)


def _once(
    out: Output,
    stop: "Stop",
    streams: "Sequence[Config]",
    against: str,
    options: "Options",
    *,
    whole: bool,
    html: Path | None,
) -> None:
    """Compare each table once. Raises typer.Exit(1) if one differs."""
    from ch_sink.trust.report import lines, page
    from ch_sink.trust.verify import Comparison

    each = EachStream(out, streams)
    found: dict[str, Report] = {}

    def begin(config: "Config") -> Comparison:
        subject, chosen = case_of(config, against, options, stop.check)
        table = f"{config.clickhouse.database}.{config.clickhouse.table}"
        which = f"{table} ({len(found) + len(each.failed) + 1} of {len(streams)})"
        return Comparison(subject, chosen, say_to(out, which if len(streams) > 1 else table))

    def reports() -> "list[Report]":
        return [found[config.stream_name] for config in streams if config.stream_name in found]

    with out.documenting(stop, lambda: {"streams": [*(r.as_json() for r in reports()), *each.documents()]}):
        for config, report, began in Comparisons(each, begin, stop).run():
            out.progress_done()
            found[config.stream_name] = report
            if whole:
                record(config, [report], began)
            for line in lines(report):
                out.say(line)
    if html is not None:
        html.write_text(page(reports(), each.failed), encoding="utf-8")
    each.expect_all()
    if not all(report.equal for report in found.values()):
        raise typer.Exit(1)


def _expect_writable(path: Path) -> None:
    """Raises ConfigError if the file cannot be written, before hours of comparison end with that."""
    there = path.exists()
    try:
        path.open("a").close()
        if not there:
            path.unlink()  # no empty report, should the comparison fail
    except OSError as error:
        raise ConfigError(
            f"--html {path} cannot be written: {error.strerror}", hint="Name a file in a folder that exists."
        ) from None


def record(config: "Config", reports: "list[Report]", began: float) -> "Compared":
    """Note what the comparison found, for `status`, metrics and the page; a user who may not write goes without."""
    from ch_sink.discovery.wiring import states_by_ledger
    from ch_sink.trust.continuous import compared

    name = config.stream_name
    found = compared(reports, began, time.time(), None)
    try:
        [(states, _)] = states_by_ledger([config])
        found = compared(reports, began, found.at, states.read([name])[name].compared)
        states.compare({name: found})
    except ClickHouseError as error:
        log.debug("the comparison is not recorded: %s", error)
    return found


def _continuous(
    out: Output, stop: "Stop", configs: "Sequence[Config]", against: str, options: "Options", share: float, rounds: int
) -> None:
    """Compare part after part of each table in turn. Raises typer.Exit(1) if the last round found a difference."""
    from ch_sink.trust.continuous import Rotation
    from ch_sink.trust.report import lines
    from ch_sink.wiring.process import Stopped

    each, failing = EachStream(out, configs), dict[str, ChSinkError]()
    turning = {
        config.stream_name: Rotation(partial(case_of, config, against, options, stop.check), partial(record, config))
        for config in configs
    }

    def step(config: "Config") -> bool:
        """Compare the next part; False if that failed and is to be tried again."""
        one = turning[config.stream_name]
        try:
            report = one.step()
        except ChSinkError as error:
            if not rounds and not isinstance(error, ConfigError):
                failing[config.stream_name] = error
                out.warn(f"{config.stream_name}: {error}; it is tried again")
                return False
            if len(configs) < 2:
                raise
            each.fail(config, error)
            del turning[config.stream_name]
            return True
        else:
            failing.pop(config.stream_name, None)
            for line in lines(report) if not report.equal else []:
                out.say(line)
            upto = one.before.equal_up_to if one.before is not None else 0.0
            moment = f"{datetime.fromtimestamp(upto, UTC):%H:%M:%S}" if upto else "–"
            out.progress(f"{report.stream}: {report.rows} rows compared; equal up to {moment}")
            return True

    def left() -> "list[Config]":
        return [c for c in configs if (one := turning.get(c.stream_name)) and not 0 < rounds <= one.rounds]

    with suppress(Stopped):
        while turn := left():
            done = True
            for config in turn:
                began = time.monotonic()
                done &= step(config)
                if left():
                    stop.wait(min(600.0, (time.monotonic() - began) * (1 / share - 1)))
                    stop.check()
            if not done:
                stop.wait(_AGAIN)
                stop.check()
    out.progress_done()
    for config in configs:
        if config.stream_name in failing:
            each.fail(config, failing[config.stream_name])
    found = [
        {"stream": name, "table": one.subject.table.qualified.replace("`", ""), **one.before.as_json()}
        for name, one in turning.items()
        if one.subject is not None and one.before is not None and name not in failing
    ]
    out.document({"streams": [*found, *each.documents()]})
    each.expect_all()
    if any(one["differences"] for one in found) or not all(one.equal for one in turning.values()):
        raise typer.Exit(1)
