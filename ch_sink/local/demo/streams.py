"""The recorded streams that the demo shows: topics, their source's final rows, and a configuration for each."""

import json
from base64 import b64decode
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ch_sink
from ch_sink.errors import ChSinkError, ConfigError

if TYPE_CHECKING:
    from ch_sink.local.kafka.broker import LocalKafka

__all__ = ["STREAMS", "DemoStream", "Truth", "TruthColumn", "config_text", "fill_topic", "fixtures_folder", "truth_of"]


@dataclass(frozen=True, slots=True)
class DemoStream:
    """One topic of a recording."""

    recording: str
    """File name without its ending."""
    topic: str
    what: str

    @property
    def database(self) -> str:
        return self.recording.partition("-")[0]

    @property
    def table(self) -> str:
        return self.topic.rpartition(".")[2]

    @property
    def name(self) -> str:
        return f"{self.database}-{self.table}"


STREAMS = (
    DemoStream("mariadb-json_schema-kc", "myjs.src.kc", "MariaDB: key changes, swaps, deletes"),
    DemoStream("mariadb-json_schema", "myjs.src.strkey", "MariaDB: text keys"),
    DemoStream("postgres-json_schema-kc", "pgjs.public.kc", "PostgreSQL: key changes, swaps, deletes"),
    DemoStream("postgres-json_schema", "pgjs.public.kc_full", "PostgreSQL: the same with REPLICA IDENTITY FULL"),
    DemoStream("postgres-json_schema", "pgjs.public.oddkey", "PostgreSQL: keys of time, numeric, UUID and bytes"),
    DemoStream("postgres-json_schema-wide", "pgjs.public.toast_d", "PostgreSQL: large values left out of updates"),
)


@dataclass(frozen=True, slots=True)
class TruthColumn:
    """A column as the source declares it."""

    name: str
    type: str
    key: bool


@dataclass(frozen=True, slots=True)
class Truth:
    """The source's final rows, as text; binary as hex, NULL as None."""

    columns: tuple[TruthColumn, ...]
    rows: tuple[tuple[str | None, ...], ...]

    def key_of(self, row: tuple[str | None, ...]) -> tuple[str | None, ...]:
        """The key's values of a row."""
        return tuple(value for column, value in zip(self.columns, row, strict=True) if column.key)

    def by_key(self) -> dict[tuple[str | None, ...], tuple[str | None, ...]]:
        """Rows by key."""
        return {self.key_of(row): row for row in self.rows}


def fixtures_folder() -> Path:
    """Where a checkout keeps the recordings. Raises ConfigError if ch_sink was installed without them."""
    folder = Path(ch_sink.__file__).resolve().parents[1] / "tests" / "fixtures"
    if not (folder / f"{STREAMS[0].recording}.jsonl").is_file():
        raise ConfigError(
            "the demo needs the recorded streams of the project's repository, and this installation has none",
            hint="Clone the repository and run `make demo` there.",
        )
    return folder


@cache
def _lines(path: Path) -> tuple[dict[str, Any], ...]:
    with path.open(encoding="utf-8") as lines:
        return tuple(json.loads(line) for line in lines)


def fill_topic(kafka: "LocalKafka", fixtures: Path, stream: DemoStream, partitions: int = 3) -> int:
    """Create a stream's topic and produce its records as they were recorded; returns their number."""
    from confluent_kafka import Producer

    kafka.create_topic(stream.topic, partitions)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "max.in.flight": 1})
    count = 0
    for line in _lines(fixtures / f"{stream.recording}.jsonl"):
        if line["topic"] != stream.topic:
            continue
        producer.produce(
            stream.topic,
            value=_bytes(line["value"]),
            key=_bytes(line["key"]),
            partition=line["partition"],
            timestamp=line["timestamp"],
            headers=[(name, _bytes(value)) for name, value in line["headers"]] or None,
        )
        count += 1
    if left := producer.flush(60):
        raise ChSinkError(f"topic {stream.topic}: the broker did not accept {left} of {count} records")
    return count


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


def truth_of(fixtures: Path, stream: DemoStream) -> Truth:
    """The final rows of a stream's source table."""
    text = (fixtures / f"{stream.database}-truth.json").read_text(encoding="utf-8")
    table = json.loads(text)["tables"][stream.table]
    columns = tuple(TruthColumn(c["name"], c["type"], bool(c["key"])) for c in table["columns"])
    return Truth(columns, tuple(tuple(row) for row in table["rows"]))


def config_text(stream: DemoStream, bootstrap: str, url: str, folder: Path, more: str = "") -> str:
    """A whole configuration file; ``more`` are further lines of it."""
    return f"""\
kafka:
  topic: {stream.topic}
  bootstrap.servers: {bootstrap}
clickhouse:
  url: {url}
  database: {stream.database}
  table: {stream.table}
{more}"""
