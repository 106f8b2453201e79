"""``ch_sink demo``: recorded streams into ClickHouse tables, compared with their source; ``ch_sink server``."""

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ch_sink.cli.output import Output
from ch_sink.model.counts import counted

if TYPE_CHECKING:
    from ch_sink.config import Config
    from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
    from ch_sink.local.demo import DemoStream
    from ch_sink.local.kafka import LocalKafka
    from ch_sink.wiring.process import Stop


_SHOWN = 4
"""Rows of each table that are printed."""
_WIDTH = 32
"""Characters of a value that are printed."""
_KINDS = {"kafka": "a broker", "mock": "librdkafka's mock cluster"}


def demo(
    context: typer.Context,
    keep: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Keep the tables and the configuration files in this folder.")
    ] = None,
) -> None:
    """Apply recorded change events to a local ClickHouse and compare it with their source.

    Starts Kafka, an embedded ClickHouse and Spark on this machine, and stops them at the end.
    """
    from ch_sink.local.demo import fixtures_folder

    out, stop = Output(), context.obj
    fixtures = fixtures_folder()
    with ExitStack() as stack:
        folder = (keep or Path(tempfile.mkdtemp(prefix="ch_sink-demo-"))).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        if keep is None:
            remove = stack.callback(shutil.rmtree, folder, ignore_errors=True)
            stop.at_forced_end(lambda: remove(folder, ignore_errors=True))
        different = _Demo(out, stop, folder, fixtures).run(stack)
    if different:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Started:
    """The systems that the demo works with."""

    kafka: "LocalKafka"
    clickhouse: "EmbeddedClickHouse"
    spark: "Future[Any]"
    """The Spark session, which may take longer than the rest."""


@dataclass(frozen=True, slots=True)
class _Demo:
    out: Output
    stop: "Stop"
    folder: Path
    fixtures: Path

    def run(self, stack: ExitStack) -> int:
        """All steps; returns how many rows differ from their source."""
        from ch_sink.local.demo import STREAMS

        out, began = self.out, time.monotonic()
        self._step("1. Start Kafka and ClickHouse")
        started = self._start(stack)

        self._step("2. Produce recorded change events of MariaDB and PostgreSQL")
        configs = self._fill(started, STREAMS)

        self._step("3. Create the tables from the schemas in the events: ch_sink init")
        self._make_tables(configs)

        self._step("4. Apply the changes to ClickHouse: ch_sink run")
        started.spark.result()
        self._carry(configs)
        early = [self._rolled_up(*pair) for pair in zip(STREAMS, configs, strict=True)]

        self._step("5. Produce the later changes of one table, and read the topic of another again from the start")
        self._add(started, STREAMS)
        later = [c for c, stream in zip(configs, STREAMS, strict=True) if stream.first is not None]
        self._carry_again(configs[:1], later)

        self._step("6. Compare the tables with their source")
        different = sum(self._compare(*pair) for pair in zip(STREAMS, configs, strict=True))
        self._step("7. Compare a rollup with GROUP BY over its source, after all these updates and deletes")
        different += sum(self._compare_rollup(*one) for one in zip(STREAMS, configs, early, strict=True))
        out.say()
        seconds = time.monotonic() - began
        if different:
            out.say(f"{counted(different, 'row')} not equal to the source ({seconds:.0f} s)", style="bold red")
        else:
            out.say(f"All {len(STREAMS)} tables equal their source ({seconds:.0f} s)", style="bold green")
        return different

    def _step(self, title: str) -> None:
        self.stop.check()
        self.out.say(title, style="bold")

    def _start(self, stack: ExitStack) -> _Started:
        """Start everything at once; do not wait for Spark yet."""
        from ch_sink.clickhouse import ClickHouseSettings, connect
        from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
        from ch_sink.local.kafka import LocalKafka
        from ch_sink.spark.session import build_session, start_jvm

        kafka, clickhouse = LocalKafka(), EmbeddedClickHouse(self.folder / "clickhouse")
        stack.callback(kafka.stop)
        stack.callback(clickhouse.close)
        self.stop.at_forced_end(kafka.stop)
        self.stop.at_forced_end(clickhouse.kill)
        pool = ThreadPoolExecutor(3)
        stack.callback(pool.shutdown)
        kafka_ready, clickhouse_ready = pool.submit(kafka.start), pool.submit(clickhouse.start)
        jvm = start_jvm(stop=self.stop)
        if jvm is not None:
            stack.callback(jvm.jvm.kill)
        spark = pool.submit(build_session, started=jvm, stop=self.stop)
        kafka_ready.result()
        clickhouse_ready.result()
        why = f" ({kafka.why})" if kafka.why else ""
        self.out.say(f"   Kafka: {_KINDS[kafka.kind]} at {kafka.bootstrap}{why}")
        version = connect(ClickHouseSettings(clickhouse.url)).server_version
        self.out.say(f"   ClickHouse: the embedded engine {version} at {clickhouse.url}")
        return _Started(kafka, clickhouse, spark)

    def _fill(self, started: _Started, streams: "Sequence[DemoStream]") -> "list[Config]":
        from ch_sink.config import load
        from ch_sink.local.demo import config_text, fill_topic

        configs = []
        for stream, count in zip(
            streams, _side_by_side(lambda s: fill_topic(started.kafka, self.fixtures, s), streams), strict=True
        ):
            path = self.folder / f"{stream.name}.yaml"
            path.write_text(
                config_text(stream, started.kafka.bootstrap, started.clickhouse.url, self.folder), encoding="utf-8"
            )
            configs.append(load(path))
            self.out.say(f"   {stream.topic}: {counted(count, 'record')} ({stream.what})")
        return configs

    def _add(self, started: _Started, streams: "Sequence[DemoStream]") -> None:
        from ch_sink.local.demo import add_later

        for stream in streams:
            if count := add_later(started.kafka, self.fixtures, stream):
                self.out.say(f"   {stream.topic}: {counted(count, 'record')} more")

    def _make_tables(self, configs: "Sequence[Config]") -> None:
        from ch_sink.cli.init import make_tables

        _side_by_side(lambda config: make_tables(self.out, config, quiet=True), configs)
        for config in configs:
            self.out.say(f"   {config.clickhouse.database}.{config.clickhouse.table}")

    def _carry(self, configs: "Sequence[Config]") -> None:
        from ch_sink.cli.run import progress, show_summaries
        from ch_sink.spark.job import run_streams

        summaries = run_streams(configs, once=True, on_batch=progress(self.out), stop=self.stop)
        self.out.progress_done()
        self.stop.check()
        show_summaries(self.out, summaries)

    def _carry_again(self, configs: "Sequence[Config]", others: "Sequence[Config]") -> None:
        from ch_sink.discovery.wiring import client_of
        from ch_sink.local.demo import stored_count
        from ch_sink.wiring.streams import rewind_stream

        before = [stored_count(client_of(c), c.clickhouse.database, c.clickhouse.table) for c in configs]
        for config in configs:
            rewind_stream(config)
        self._carry([*configs, *others])
        for config, count in zip(configs, before, strict=True):
            after = stored_count(client_of(config), config.clickhouse.database, config.clickhouse.table)
            name = f"{config.clickhouse.database}.{config.clickhouse.table}"
            self.out.say(f"   {name}: {counted(count, 'stored row')} before, {after} after")

    def _rolled_up(self, stream: "DemoStream", config: "Config") -> list[tuple[str, ...]]:
        """The groups of the stream's rollup, if it has one."""
        from ch_sink.discovery.wiring import client_of
        from ch_sink.local.demo import rolled_up

        return rolled_up(client_of(config), stream) if config.rollups else []

    def _compare_rollup(self, stream: "DemoStream", config: "Config", early: list[tuple[str, ...]]) -> int:
        """Print a rollup, as it was and as it is, next to the source's groups; returns how many differ."""
        from ch_sink.local.demo import grouped, truth_of

        if not config.rollups:
            return 0
        source, stored = grouped(truth_of(self.fixtures, stream)), self._rolled_up(stream, config)
        wrong = sorted({group[0] for group in set(source) ^ set(stored)})
        shown = list(dict.fromkeys((*wrong, *(group[0] for group in source))))[: _SHOWN + len(wrong)]
        sides = {"rollup before": early, "rollup now": stored, "source": source}
        self.out.table(
            ["", "k", "rows", "sum of id"],
            [[side, *group] for k in shown for side, groups in sides.items() for group in groups if group[0] == k],
        )
        self.out.say(f"{counted(len(source), 'group')}, {f'{len(wrong)} not equal' if wrong else 'all equal'}")
        return len(wrong)

    def _compare(self, stream: "DemoStream", config: "Config") -> int:
        """Print a table next to its source; returns how many rows differ."""
        from ch_sink.discovery.wiring import client_of
        from ch_sink.local.demo import as_source, stored_rows, truth_of, unequal

        out = self.out
        truth = truth_of(self.fixtures, stream)
        source = truth.by_key()
        stored = stored_rows(client_of(config), config.clickhouse.database, config.clickhouse.table, truth)
        wrong = unequal(truth, stored)
        verdict = f"{counted(len(wrong), 'row')} not equal" if wrong else f"{counted(len(source), 'row')}, all equal"
        out.say()
        name = f"{config.clickhouse.database}.{config.clickhouse.table}"
        out.say(f"{name}: {verdict}", style="red" if wrong else "green")
        shown = list(dict.fromkeys((*wrong, *list(source)[:_SHOWN])))[: _SHOWN + len(wrong)]
        names = [c.name for c in truth.columns]
        rows: list[list[object]] = []
        for key in shown:
            here, there = source.get(key), stored.get(key)
            if here is not None and there is not None:
                there = as_source(truth, here, there)
            for side, found in (("source", here), ("table", there)):
                cells = [_short(c) for c in found] if found is not None else ["(no row)"] + [""] * (len(names) - 1)
                rows.append([side, *cells])
        out.table(["", *names], rows)
        if len(source) > len(shown):
            out.say(f"… and {counted(len(source) - len(shown), 'more row')}")
        return len(wrong)


_Thing = TypeVar("_Thing")
_Made = TypeVar("_Made")


def _side_by_side(work: Callable[[_Thing], _Made], things: Sequence[_Thing]) -> list[_Made]:
    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(work, things))


def _short(cell: str | None) -> str:
    if cell is None:
        return "NULL"
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in cell[:_WIDTH])
    return text if len(cell) <= _WIDTH else f"{text[: _WIDTH - 12]}… ({len(cell)} characters)"


def server(
    context: typer.Context,
    host: Annotated[str, typer.Option(metavar="HOST", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="PORT", help="Port to listen on; 0 takes a free one.", min=0, max=65535)
    ] = 8123,
    path: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the tables; created if missing.")] = Path(
        "./clickhouse"
    ),
    user: Annotated[str, typer.Option(metavar="NAME", help="User name that clients log in with.")] = "default",
) -> None:
    """Serve ClickHouse's HTTP interface from an embedded engine, to try ch_sink without a server.

    Clients authenticate with the password in the environment variable CH_SINK_SERVER_PASSWORD.
    """
    from ch_sink.local.clickhouse.server import ClickHouseEndpoint, run

    logging.getLogger("ch_sink.local").setLevel(logging.INFO)
    stop: Stop = context.obj

    def ready(endpoint: ClickHouseEndpoint) -> None:
        stop.expected = True
        Output().note(f"ClickHouse {endpoint.engine.version} at {endpoint.url}, data in {endpoint.engine.path}")

    password = os.environ.get("CH_SINK_SERVER_PASSWORD", "")
    run(ClickHouseEndpoint(path.resolve(), host, port, user, password), stop.event, on_ready=ready)
