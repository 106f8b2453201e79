"""``ch_sink demo``: recorded MariaDB and PostgreSQL streams into ClickHouse tables, beside their source's rows."""

import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ch_sink.cli.output import Output
from ch_sink.config import Config, load
from ch_sink.local.demo.streams import STREAMS, DemoStream, Truth, config_text, fill_topic, fixtures_folder, truth_of

if TYPE_CHECKING:
    from ch_sink.observe import StreamSummary

__all__ = ["demo"]

_SHOWN = 4
"""Rows of each table that are printed."""


def demo(
    keep: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Keep tables, checkpoints and configurations here.")
    ] = None,
) -> None:
    """See it run: recorded change events, a local Kafka, an embedded ClickHouse, and tables that equal their source."""
    out = Output()
    fixtures = fixtures_folder()
    with ExitStack() as stack:
        folder = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ch_sink-demo-")))
        folder.mkdir(parents=True, exist_ok=True)
        different = _demo(out, stack, folder.resolve(), fixtures)
    if different:
        raise typer.Exit(1)


def _demo(out: Output, stack: ExitStack, folder: Path, fixtures: Path) -> int:
    from ch_sink.cli.init import make_tables
    from ch_sink.cli.run import show_summaries
    from ch_sink.discovery.wiring import client_of
    from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
    from ch_sink.local.demo.compare import stored_count
    from ch_sink.local.kafka.broker import LocalKafka

    started = time.monotonic()
    out.say("1. Starting Kafka and ClickHouse", style="bold")
    kafka = stack.enter_context(LocalKafka())
    if kafka.why:
        out.say(f"   Kafka is {_KINDS[kafka.kind]} ({kafka.why})")
    else:
        out.say(f"   Kafka is {_KINDS[kafka.kind]} at {kafka.bootstrap}")
    clickhouse = stack.enter_context(EmbeddedClickHouse(folder / "clickhouse"))
    out.say(f"   ClickHouse is the embedded engine at {clickhouse.url}")

    out.say("2. Recorded change events of real connectors go into topics", style="bold")
    configs: list[Config] = []
    for stream in STREAMS:
        count = fill_topic(kafka, fixtures, stream)
        path = folder / f"{stream.name}.yaml"
        path.write_text(config_text(stream, kafka.bootstrap, clickhouse.url, folder), encoding="utf-8")
        configs.append(load(path))
        out.say(f"   {stream.topic}: {count} records ({stream.what})")

    out.say("3. ch_sink init makes the tables from the schemas in the events", style="bold")
    for config in configs:
        make_tables(out, config, quiet=True)
        out.say(f"   {config.clickhouse.database}.{config.clickhouse.table}")

    out.say("4. ch_sink run carries the changes over", style="bold")
    show_summaries(out, _run(out, configs))

    out.say("5. The checkpoints are thrown away, and two topics read again from their start", style="bold")
    again = [config for config, stream in zip(configs, STREAMS, strict=True) if stream.table == "kc"]
    again = [c.model_copy(update={"start": "earliest", "checkpoint": c.checkpoint + "-again"}) for c in again]
    before = [stored_count(client_of(c), c.clickhouse.database, c.clickhouse.table) for c in again]
    show_summaries(out, _run(out, again))
    for config, count in zip(again, before, strict=True):
        after = stored_count(client_of(config), config.clickhouse.database, config.clickhouse.table)
        name = f"{config.clickhouse.database}.{config.clickhouse.table}"
        out.say(f"   {name}: {count} stored rows before, {after} after; what came again was recognised")

    out.say("6. The tables beside their source", style="bold")
    different = sum(_compare(out, fixtures, stream, config) for stream, config in zip(STREAMS, configs, strict=True))
    out.say()
    seconds = time.monotonic() - started
    if different:
        out.say(f"{different} rows differ from the source ({seconds:.0f} s)", style="bold red")
    else:
        out.say(f"All {len(STREAMS)} tables equal their source ({seconds:.0f} s)", style="bold green")
    return different


def _run(out: Output, configs: list[Config]) -> "list[StreamSummary]":
    from ch_sink.cli.run import progress
    from ch_sink.spark.job import run_streams

    summaries = run_streams(configs, once=True, on_batch=progress(out))
    out.progress_done()
    return summaries


_KINDS = {"kafka": "a real broker", "mock": "librdkafka's mock cluster"}


def _compare(out: Output, fixtures: Path, stream: DemoStream, config: Config) -> int:
    """Prints a table beside its source; returns how many rows differ."""
    from ch_sink.discovery.wiring import client_of
    from ch_sink.local.demo.compare import as_source, stored_rows, unequal

    truth: Truth = truth_of(fixtures, stream)
    stored = stored_rows(client_of(config), config.clickhouse.database, config.clickhouse.table, truth)
    wrong = unequal(truth, stored)
    total = len(truth.rows)
    verdict = f"{total} rows, all equal" if not wrong else f"{len(wrong)} rows differ"
    out.say()
    out.say(f"{config.clickhouse.database}.{config.clickhouse.table}: {verdict}", style="red" if wrong else "green")
    shown = list(dict.fromkeys((*wrong, *list(truth.by_key())[:_SHOWN])))[: _SHOWN + len(wrong)]
    names = [c.name for c in truth.columns]
    source, table = truth.by_key(), stored
    rows: list[list[object]] = []
    for key in shown:
        here, there = source.get(key), table.get(key)
        if here is not None and there is not None:
            there = as_source(truth, here, there)
        for side, found in (("source", here), ("table", there)):
            cells = [_short(cell) for cell in found] if found is not None else ["(no row)"] + [""] * (len(names) - 1)
            rows.append([side, *cells])
    out.table(["", *names], rows)
    if total > len(shown):
        out.say(f"… and {total - len(shown)} more")
    return len(wrong)


def _short(cell: str | None) -> str:
    if cell is None:
        return "NULL"
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in cell[:_WIDTH])
    return text if len(cell) <= _WIDTH else f"{text[: _WIDTH - 12]}… ({len(cell)} characters)"


_WIDTH = 32
