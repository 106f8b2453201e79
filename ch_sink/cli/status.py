"""``ch_sink status``: the state of streams and how far they have come, from the ledger and the topics' watermarks."""

import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ch_sink.cli.options import AsJson, Only, Overrides, load_all
from ch_sink.cli.output import Output
from ch_sink.errors import ChSinkError, ClickHouseError, ConfigError, KafkaError
from ch_sink.model.counts import counted, grouped

if TYPE_CHECKING:
    from ch_sink.observe.stream import StreamStatus
    from ch_sink.ports import Compared

_STYLE = {"stopped": "bold red", "waiting": "yellow", "paused": "cyan", "running": "green", "idle": ""}


def status(
    configs: Annotated[
        list[str],
        typer.Argument(
            metavar="CONFIG… [NAME…]",
            help="YAML files; then names of streams, topics or tables to show in detail.",
            show_default=False,
        ),
    ],
    only: Only = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until interrupted.")] = False,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time between two refreshes of --watch.", min=0.2)
    ] = 2.0,
) -> None:
    """Show one line per stream, the worst first: its state, lag, rows, and what stopped it.

    One stream alone is shown in detail, with offsets, lag, rows and skipped records of each partition.
    """
    out = Output(as_json=as_json)
    files, names = _files_and_names(configs)
    while True:
        try:
            _refresh(out, files, names, overrides, only, clear=watch)
        except (ClickHouseError, KafkaError) as error:
            if not watch:
                raise
            out.warn(str(error))
        if not watch:
            return
        time.sleep(every)


def _refresh(
    out: Output, files: list[Path], names: set[str], overrides: list[str] | None, only: str | None, *, clear: bool
) -> None:
    from ch_sink.discovery.statuses import refused_statuses, statuses
    from ch_sink.observe.stream import worst_first

    refused: dict[str, ChSinkError] = {}
    streams = load_all(out, files, overrides, only, recorded=True, refused=refused)
    chosen = [c for c in streams if not names or names & {c.stream_name, c.kafka.topic, c.clickhouse.table}]
    apart = {topic: error for topic, error in refused.items() if not names or topic in names}
    if streams and not chosen and not apart:
        raise ConfigError(
            f"no stream is named {', '.join(sorted(names))}", hint="`ch_sink status CONFIG` lists the streams."
        )
    seen = worst_first([*refused_statuses(apart), *statuses(chosen, out.warn)])
    if clear:
        out.clear()
        out.say(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC", style="dim")
    if names or len(seen) == 1:
        for stream in seen:
            show_one(out, stream)
    else:
        show_all(out, seen)
    out.document({"streams": [stream.as_json() for stream in seen]})


def _files_and_names(given: Sequence[str]) -> tuple[list[Path], set[str]]:
    """Arguments that are files, and the others. What looks like a file is one, so that a typing error is said."""
    files = [word for word in given if Path(word).is_file() or word.endswith((".yaml", ".yml")) or "/" in word]
    if not files:
        raise ConfigError(f"{given[0]} is not a file", hint="Name the configuration first: ch_sink status CONFIG NAME.")
    return list(map(Path, files)), set(given).difference(files)


def show_all(out: Output, streams: "Sequence[StreamStatus]") -> None:
    """One line per stream, what is wrong with each, and totals."""
    columns = ("stream", "state", "lag", "behind", "rows", "deletes", "dead letters", "last event")
    out.table(
        columns,
        [
            (
                seen.stream,
                seen.standing.state,
                seen.lag,
                None if seen.behind is None else f"{seen.behind:.0f} s",
                seen.counts.rows,
                seen.counts.deletes,
                sum(seen.dead_letters.values()),
                _moment(seen.counts.source_time / 1000),
            )
            for seen in streams
        ],
        styles=[_STYLE[seen.standing.state] for seen in streams],
    )
    for seen in streams:
        if seen.standing.error:
            out.say()
            out.say(seen.stream, style="bold")
            _show_error(out, seen)
    if streams:
        out.say()
        out.say(_totals(streams))


def _totals(streams: "Sequence[StreamStatus]") -> str:
    states = Counter(seen.standing.state for seen in streams)
    words = ", ".join(
        f"{n} {state}" for state, n in sorted(states.items(), key=lambda found: list(_STYLE).index(found[0]))
    )
    lags = [seen.lag for seen in streams]
    unknown = lags.count(None)
    lag = f"lag {grouped(sum(lag for lag in lags if lag is not None))}"
    lag += f" and {counted(unknown, 'unknown lag', 'unknown lags')}" if unknown else ""
    rows = sum(seen.counts.rows for seen in streams)
    letters = sum(n for seen in streams for n in seen.dead_letters.values())
    more = f", {counted(letters, 'dead letter')}" if letters else ""
    return f"{counted(len(streams), 'stream')}: {words}; {lag}, {counted(rows, 'row')}{more}"


def _show_error(out: Output, seen: "StreamStatus") -> None:
    standing = seen.standing
    when = f" since {_moment(standing.since)}" if standing.since else ""
    out.say(f"  {standing.state}{when}: {standing.error}", style=_STYLE[standing.state])
    if standing.next:
        out.say(f"  next: {standing.next}")


def show_one(out: Output, seen: "StreamStatus") -> None:
    """All about one stream."""
    out.say(f"{seen.stream}  →  {seen.table}", style="bold")
    if seen.standing.error:
        _show_error(out, seen)
    else:
        by = f" by {seen.standing.by}" if seen.standing.by else ""
        since = f" since {_moment(seen.standing.since)}" if seen.standing.since else ""
        out.say(f"  {seen.standing.state}{since}{by}", style=_STYLE[seen.standing.state])
    if seen.compared is not None:
        out.say(f"  {_compared(seen.compared)}", style="red" if seen.compared.differences else "")
    if not seen.partitions:
        out.say("  nothing has been read yet")
        return
    lag = "lag unknown" if seen.lag is None else f"lag {counted(seen.lag, 'offset')}"
    out.say(f"  {counted(len(seen.partitions), 'partition')}, {lag}")
    out.table(
        ("partition", "next offset", "end", "lag", "rows", "deletes", "dead letters", "epochs", "last event"),
        [
            (
                p.partition,
                p.next_offset,
                p.high,
                p.lag,
                p.counts.rows,
                p.counts.deletes,
                p.counts.dead_letters,
                ", ".join(f"{name} {epoch}" for name, epoch in p.epochs.items() if epoch) or None,
                _moment(p.counts.source_time / 1000),
            )
            for p in seen.partitions
        ],
    )
    if seen.seconds:
        out.say("  time: " + ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in seen.seconds.items()))
    if seen.behind:
        out.say(f"  behind the source by {seen.behind:.0f} s")
    counts = {name: n for name, n in sorted(seen.counts.kinds.items()) if n and not name.endswith("_ms")}
    if counts:
        out.say("  " + ", ".join(f"{name} {n}" for name, n in counts.items()))
    for kind, number in seen.dead_letters.items():
        out.say(f"  {counted(number, 'dead letter')}: {kind}", style="yellow")
    for p in seen.partitions:
        if p.lost:
            lost = counted(p.lost, "offset")
            out.say(f"  partition {p.partition}: {lost} lost, dropped by the broker before they were read", style="red")


def _compared(found: "Compared") -> str:
    upto = f"equal to its {found.against} up to {_moment(found.equal_up_to)}" if found.equal_up_to else ""
    if not found.differences and not found.unjudged:
        return upto
    many = counted(found.differences, "difference") if found.differences else "no difference"
    beside = f", {counted(found.unjudged, 'row')} not judged" if found.unjudged else ""
    return f"{many} from its {found.against} at {_moment(found.at)}{beside}" + (f"; {upto}" if upto else "")


def _moment(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S") if seconds else None
