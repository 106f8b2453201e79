"""One run: databases change while they are snapshotted, read, and carried over, and the parts between are killed."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from ch_sink.clickhouse import Client
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from tests.real.shapes import Dialect, Shape, shapes
from tests.real.sink import Job, caught_up, ends, init_and_check
from tests.real.stand.connect import Connect
from tests.real.writers import Source, Writer, add_columns, make_tables, write
from tests.support.fixtures import TruthTable
from tests.support.recorded import differences, select_list
from tests.support.sink import config_file

_WRITERS = 3


@dataclass(frozen=True, slots=True)
class Format:
    """How connectors write, and what the sink has to know to read it."""

    name: str
    converters: Mapping[str, str]
    kafka: Mapping[str, str] = field(default_factory=dict)


JSON = Format(
    "json",
    {
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        # Else a NULL in a column with a default arrives as the default.
        "value.converter.replace.null.with.default": "false",
    },
)


@dataclass(frozen=True, slots=True)
class Stream:
    """One table of a source in one format."""

    source: Source
    shape: Shape
    format: Format
    scenario: str = "live"

    @property
    def connector(self) -> str:
        """Name of its connector, before its topics, and of its database in ClickHouse."""
        return f"{self.scenario}_{self.source.name}_{self.format.name}"

    @property
    def topic(self) -> str:
        return f"{self.connector}.{self.source.qualified(self.shape.name)}"


@dataclass
class Scenario:
    """Streams of several sources into one ClickHouse, by one job."""

    folder: Path
    kafka: LocalKafka
    connect: Connect
    clickhouse: EmbeddedClickHouse
    client: Client
    sources: Sequence[Source]
    formats: Mapping[str, Format]
    name: str = "live"
    shapes: Callable[[str], Sequence[Shape]] = shapes
    """The tables of a source."""
    truth: dict[tuple[str, str], TruthTable] = field(default_factory=dict)
    """Final rows by source and table."""
    status: list[Any] = field(default_factory=list)
    """What ``status`` told at the end."""
    committed: dict[str, int] = field(default_factory=dict)
    """Transactions by source."""
    job: Job | None = None
    exit_code: int | None = None
    """Of the job, interrupted at the end."""

    @property
    def streams(self) -> list[Stream]:
        """Those whose format is here."""
        return [
            Stream(source, shape, self.formats[name], self.name)
            for source in self.sources
            for shape in self.shapes(source.name)
            for name in shape.formats_of(source.name)
            if name in self.formats
        ]

    def run(self) -> None:
        """Everything, up to the moment when tables and sources can be compared."""
        rng = Random("live")
        for source in self.sources:
            make_tables(source, rng, steps=60)
        writers = [Writer(source, str(n), rate=20) for source in self.sources for n in range(_WRITERS)]
        try:
            for writer in writers:
                writer.start()
            self.make_connectors()
            configs = self.configs()
            self.wait_for_snapshots()
            for config in configs:
                init_and_check(config)
            self._run_with_kills(configs, writers, rng)
            for writer in writers:
                name = writer.source.name
                self.committed[name] = self.committed.get(name, 0) + writer.end()
            for source in self.sources:  # no table is left empty
                write(source, rng, Dialect(source.name, grown=True), steps=20)
            self.wait_for_the_last_change()
            for stream in self.streams:
                self.truth[stream.source.name, stream.shape.name] = stream.source.table(stream.shape.name)
            assert self.job is not None
            self.status = caught_up(self.job, configs, 300)
            self.exit_code = self.job.end()
        finally:
            for writer in writers:
                writer.over.set()
            if self.job is not None:
                self.job.end()
            for writer in writers:
                writer.join(30)

    def make_connectors(self) -> None:
        """One for each source and format, which start with a snapshot; Raises RuntimeError where one does not run."""
        for number, name in enumerate(dict.fromkeys(stream.connector for stream in self.streams)):
            mine = [stream for stream in self.streams if stream.connector == name]
            source = mine[0].source
            tables = [source.qualified(table) for table in (*(stream.shape.name for stream in mine), "mark")]
            properties = {
                **source.connector(name, number, self.kafka.bootstrap),
                "tasks.max": "1",
                "topic.prefix": name,
                "table.include.list": ",".join(tables),
                "topic.creation.default.replication.factor": "1",
                "topic.creation.default.partitions": "3",
                "topic.creation.groups": "keyless",
                "topic.creation.keyless.include": ".*keyless",
                "topic.creation.keyless.replication.factor": "1",
                "topic.creation.keyless.partitions": "1",
                "skipped.operations": "none",
                **mine[0].format.converters,
            }
            self.connect.add(name, properties)
        self.connect.wait_until_running()

    def configs(self, **more: Any) -> list[Path]:
        """The streams' files; ``more`` are further settings of each."""
        made = []
        for stream in self.streams:
            folder, table = self.folder / stream.connector, stream.shape.name
            folder.mkdir(parents=True, exist_ok=True)
            self.client.command(f"CREATE DATABASE IF NOT EXISTS {stream.connector}")
            own = {"engine": stream.shape.engine, "chunk_offsets": 200, **stream.shape.stream, **more}
            place = (stream.topic, table, stream.connector, stream.format.kafka)
            made.append(config_file(folder, self.kafka, self.clickhouse, *place, **own))
        return made

    def wait_for_snapshots(self) -> None:
        """Until each topic has a record, which ``init`` needs."""
        topics = [stream.topic for stream in self.streams]
        deadline = time.monotonic() + 180
        while empty := [topic for topic, end in ends(self.kafka.bootstrap, topics).items() if not end]:
            assert time.monotonic() < deadline, f"no events in three minutes in {empty}"
            time.sleep(0.5)

    def _run_with_kills(self, configs: Sequence[Path], writers: Sequence[Writer], rng: Random) -> None:
        """The job is killed and started again; so is Connect, while tables get columns."""
        log = self.folder / "job.log"
        self.job = Job(configs, log)
        deadline = time.monotonic() + 240
        while self._begun() < len(configs) / 2:
            assert self.job.lives(), f"the job ended:\n{self.job.tail()}"
            assert time.monotonic() < deadline, f"half of the tables are empty after four minutes:\n{self.job.tail()}"
            time.sleep(0.3)
        for source in self.sources:
            add_columns(source)
        for writer in writers:
            writer.grown.set()
        time.sleep(1 + 3 * rng.random())
        self.connect.kill()
        time.sleep(rng.random())
        self.job.kill()
        self.job = Job(configs, log)
        self.connect.start()
        self.connect.wait_until_running()
        time.sleep(12)

    def _begun(self) -> int:
        """Tables that have rows."""
        select = "SELECT count() AS n FROM {place}.{table}"
        places = [(stream.connector, stream.shape.name) for stream in self.streams]
        return sum(self.client.rows(select.format(place=p, table=t))[0]["n"] > 0 for p, t in places)

    def wait_for_the_last_change(self) -> None:
        """A connector tells changes in order: what came before the mark has been sent when the mark is there."""
        marks = list(dict.fromkeys(f"{s.connector}.{s.source.qualified('mark')}" for s in self.streams))
        for source in self.sources:
            with source.session() as cursor:
                cursor.execute("INSERT INTO mark VALUES (1)")
        deadline = time.monotonic() + 180
        while not all(ends(self.kafka.bootstrap, marks).values()):
            assert time.monotonic() < deadline, "the last change did not arrive within three minutes"
            time.sleep(0.3)
        # Batches of other partitions may still be on their way when the mark's is there.
        topics, before = [stream.topic for stream in self.streams], dict[str, int]()
        while before != (now := ends(self.kafka.bootstrap, topics)):
            before = now
            time.sleep(1.5)

    def differences(self, stream: Stream) -> list[str]:
        """Where the current-state view and the source's rows differ."""
        table, database = stream.shape.name, stream.connector
        truth = self.truth[stream.source.name, table]
        if stream.format is not JSON:
            truth = _defaulted(truth, stream.shape.defaults)
        found = self.client.rows(
            "SELECT name, type FROM system.columns WHERE database = {d:String} AND table = {t:String}",
            {"d": database, "t": f"{table}_current"},
        )
        types = {str(row["name"]): str(row["type"]) for row in found}
        if lacking := [name for name in truth.names if name not in types]:
            return [f"{table}_current lacks {lacking}"]
        rows = self.client.rows(f"SELECT {select_list(truth, types)} FROM {database}.`{table}_current`")
        return differences(f"{stream.source.name} live", database, truth, types, [tuple(row.values()) for row in rows])

    def dead_letters(self, stream: Stream) -> list[Any]:
        """Records that could not be applied."""
        letters = f"{stream.connector}.ch_sink_dead_letters FINAL"
        select = f"SELECT partition, offset, kind, column, reason FROM {letters} WHERE topic = {{t:String}}"
        return self.client.rows(select, {"t": stream.topic})


def _defaulted(truth: TruthTable, defaults: Mapping[str, str]) -> TruthTable:
    """What a converter makes of NULL in columns with a default."""
    texts = [defaults.get(name) for name in truth.names]
    rows = tuple(tuple(d if v is None else v for v, d in zip(row, texts, strict=True)) for row in truth.rows)
    return replace(truth, rows=rows)
