"""``ch_sink status``: how far streams have come, from the ledger and the topic's watermarks."""

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from ch_sink.cli.options import AsJson, ConfigFiles, Only, Overrides, expecting_a_ledger, load_all
from ch_sink.cli.output import Output
from ch_sink.errors import KafkaError
from ch_sink.model.counted import counted

if TYPE_CHECKING:
    from ch_sink.config import Config
    from ch_sink.observe import StreamStatus

__all__ = ["gather", "show", "status"]


def status(
    configs: ConfigFiles,
    only: Only = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until interrupted.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between two refreshes of --watch.", min=0.2)] = 2.0,
) -> None:
    """Show offsets, lag, rows and skipped records of each partition."""
    out = Output(as_json=as_json)
    settings = load_all(out, configs, overrides, only)
    while True:
        seen = [gather(out, config) for config in settings]
        for stream in seen:
            show(out, stream)
        documents = [stream.as_json() for stream in seen]
        out.document(documents[0] if len(documents) == 1 else documents)
        if not watch:
            return
        time.sleep(every)


def gather(out: Output, config: "Config") -> "StreamStatus":
    """One stream's status. Raises ClickHouseError if the ledger cannot be read; the broker may be unreachable."""
    from ch_sink.clickhouse import ClickHouseDeadLetters
    from ch_sink.discovery.wiring import client_of, ledger_of, topic_offsets
    from ch_sink.observe import stream_status

    client = client_of(config)
    ledger = ledger_of(config, client)
    with expecting_a_ledger(config):
        totals = ledger.totals()
        last = ledger.history(1)
    watermarks: dict[int, tuple[int, int]] | None = None
    topic_id = last[0].topic_id if last else None
    try:
        with topic_offsets(config) as offsets:
            topic = offsets.state(config.kafka.topic)
        topic_id = topic.topic_id
        watermarks = {p: (low, topic.high[p]) for p, low in topic.low.items()}
    except KafkaError as error:
        out.warn(f"{error}; the lag is unknown")
    letters: dict[str, int] = {}
    if topic_id is not None:
        letters = ClickHouseDeadLetters(
            client, config.state_database, config.tables.dead_letters, config.stream_name, topic_id
        ).count()
    newest = last[0] if last else None
    return stream_status(
        config.stream_name,
        config.kafka.topic,
        f"{config.clickhouse.database}.{config.clickhouse.table}",
        totals,
        topic_id=topic_id,
        watermarks=watermarks,
        progress=ledger.progress(topic_id) if topic_id is not None else {},
        dead_letters=letters,
        last_batch=None
        if newest is None
        else {
            "run_id": newest.run_id,
            "finished": datetime.fromtimestamp(newest.finished, UTC).isoformat(timespec="milliseconds"),
        },
    )


def show(out: Output, seen: "StreamStatus") -> None:
    """Print one stream's status."""
    out.say(f"{seen.stream}  →  {seen.table}", style="bold")
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
                p.rows,
                p.deletes,
                p.dead_letters,
                ", ".join(f"{name} {epoch}" for name, epoch in p.epochs.items() if epoch) or None,
                _moment(p.source_time / 1000),
            )
            for p in seen.partitions
        ],
    )
    if seen.seconds:
        out.say("  time: " + ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in seen.seconds.items()))
    if seen.behind:
        out.say(f"  behind the source by {seen.behind:.0f} s")
    counts = {name: n for name, n in sorted(seen.counts.items()) if n and not name.endswith("_ms")}
    if counts:
        out.say("  " + ", ".join(f"{name} {n}" for name, n in counts.items()))
    for kind, number in seen.dead_letters.items():
        out.say(f"  {counted(number, 'dead letter')}: {kind}", style="yellow")
    for p in seen.partitions:
        if p.lost:
            lost = counted(p.lost, "offset")
            out.say(f"  partition {p.partition}: {lost} lost, dropped by the broker before being read", style="red")


def _moment(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S") if seconds else None
