"""The recorded streams that the demo shows, and how their tables are compared with the source's final rows."""

import json
import re
from base64 import b64decode
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ch_sink
from ch_sink.clickhouse import Client
from ch_sink.errors import ChSinkError, ConfigError
from ch_sink.types.sql import quote

if TYPE_CHECKING:
    from ch_sink.local.kafka import LocalKafka

Row = tuple[str | None, ...]

_BINARY = re.compile(r"bytea|binary|blob")
_NUMBER = re.compile(r"int|numeric|decimal|float|double|real|serial")
_TIME = re.compile(r"timestamp|datetime|date|time")


@dataclass(frozen=True, slots=True)
class DemoStream:
    """One topic of a recording."""

    recording: str
    """File name without its ending."""
    topic: str
    what: str
    more: str = ""
    """Further lines of its configuration."""
    first: int | None = None
    """How many records are in the topic when the streams run for the first time; None for all."""

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
    DemoStream(
        "postgres-json_schema-kc",
        "pgjs.public.kc",
        "PostgreSQL: key changes, swaps, deletes, with a rollup",
        "engine: collapsing\nrollups: {kc_by_k: {by: {k: k}, sum: {ids: id}, count: rows}}\n",
        first=3,  # the snapshot
    ),
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
    """The folder in which a checkout keeps the recordings. Raises ConfigError if ch_sink was installed without them."""
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


def fill_topic(kafka: "LocalKafka", fixtures: Path, stream: DemoStream) -> int:
    """Create a stream's topic and produce its first records as they were recorded; returns their number."""
    kafka.create_topic(stream.topic)
    return _produce(kafka, fixtures, stream, 0, stream.first)


def add_later(kafka: "LocalKafka", fixtures: Path, stream: DemoStream) -> int:
    """Produce the records that `fill_topic` has held back; returns their number."""
    return 0 if stream.first is None else _produce(kafka, fixtures, stream, stream.first, None)


def _produce(kafka: "LocalKafka", fixtures: Path, stream: DemoStream, start: int, end: int | None) -> int:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": kafka.bootstrap, "max.in.flight": 1})
    lines = [line for line in _lines(fixtures / f"{stream.recording}.jsonl") if line["topic"] == stream.topic]
    lines = lines[start:end]
    for line in lines:
        producer.produce(
            stream.topic,
            value=_bytes(line["value"]),
            key=_bytes(line["key"]),
            partition=line["partition"],
            timestamp=line["timestamp"],
            headers=[(name, _bytes(value)) for name, value in line["headers"]] or None,
        )
    if left := producer.flush(60):
        raise ChSinkError(f"topic {stream.topic}: the broker did not accept {left} of {len(lines)} records")
    return len(lines)


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


def truth_of(fixtures: Path, stream: DemoStream) -> Truth:
    """The final rows of a stream's source table."""
    text = (fixtures / f"{stream.database}-truth.json").read_text(encoding="utf-8")
    table = json.loads(text)["tables"][stream.table]
    columns = tuple(TruthColumn(c["name"], c["type"], bool(c["key"])) for c in table["columns"])
    return Truth(columns, tuple(tuple(row) for row in table["rows"]))


def config_text(stream: DemoStream, bootstrap: str, url: str, folder: Path) -> str:
    """A whole configuration file."""
    return f"""\
kafka:
  topic: {stream.topic}
  bootstrap.servers: {bootstrap}
clickhouse:
  url: {url}
  database: {stream.database}
  table: {stream.table}
{stream.more}"""


def stored_count(client: Client, database: str, table: str) -> int:
    """Rows of the table itself, including superseded and deleted ones that no merge has removed yet."""
    found = client.rows(f"SELECT count() AS n FROM {quote(database)}.{quote(table)}", doing=f"count {database}.{table}")
    return int(found[0]["n"])


def rolled_up(client: Client, stream: DemoStream) -> list[tuple[str, ...]]:
    """The rows of the stream's rollup: k, how many rows, the sum of their ids."""
    found = client.rows(
        f"SELECT k, rows, ids FROM {quote(stream.database)}.kc_by_k_current ORDER BY k", doing="read the rollup"
    )
    return [tuple(str(value) for value in row.values()) for row in found]


def grouped(truth: Truth) -> list[tuple[str, ...]]:
    """The same of the source's final rows."""
    at = {column.name: place for place, column in enumerate(truth.columns)}
    groups: dict[int, list[int]] = {}
    for row in truth.rows:
        groups.setdefault(int(row[at["k"]] or 0), []).append(int(row[at["id"]] or 0))
    return [(str(k), str(len(ids)), str(sum(ids))) for k, ids in sorted(groups.items())]


def stored_rows(client: Client, database: str, table: str, truth: Truth) -> dict[Row, Row]:
    """Rows of the current-state view as text, by key."""
    wanted = ", ".join(
        f"{'hex' if _BINARY.search(c.type) else 'toString'}({quote(c.name)}) AS {quote(c.name)}" for c in truth.columns
    )
    found = client.rows(
        f"SELECT {wanted} FROM {quote(database)}.{quote(table + '_current')}", doing=f"read {database}.{table}_current"
    )
    rows = [tuple(row[c.name] for c in truth.columns) for row in found]
    keys = [c for c in truth.columns if c.key]

    def plain(key: Row) -> tuple[object, ...]:
        return tuple(_plain(c, v) for c, v in zip(keys, key, strict=True))

    # Keys are written as in the source if the values are equal.
    source = {plain(key): key for key in truth.by_key()}
    return {source.get(plain(truth.key_of(row)), truth.key_of(row)): row for row in rows}


def as_source(truth: Truth, here: Row, there: Row) -> Row:
    """The stored row's values, written as in the source if they are equal."""
    both = zip(truth.columns, here, there, strict=True)
    return tuple(a if _plain(c, a) == _plain(c, b) else b for c, a, b in both)


def unequal(truth: Truth, stored: dict[Row, Row]) -> list[Row]:
    """Keys of the rows that differ, are missing, or are no longer in the source."""
    source = truth.by_key()
    wrong = []
    for key in {**source, **stored}:
        here, there = source.get(key), stored.get(key)
        if (
            here is None
            or there is None
            or any(_plain(c, a) != _plain(c, b) for c, a, b in zip(truth.columns, here, there, strict=True))
        ):
            wrong.append(key)
    return wrong


def _plain(column: TruthColumn, value: str | None) -> object:
    """A value without differences of notation: trailing zeros, letter case of hex, the UTC suffix."""
    if value is None:
        return None
    if _BINARY.search(column.type):
        return value.upper().removeprefix("\\X")
    if _TIME.search(column.type):
        text = re.sub(r"(\+00(:00)?|Z)$", "", value.replace("T", " "))
        return re.sub(r"\.?0+$", "", text) if "." in text else text
    if _NUMBER.search(column.type):
        try:
            return Decimal(value)
        except InvalidOperation:
            return value
    return value
