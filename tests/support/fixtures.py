"""The recorded streams of tests/fixtures: as lines, by topic, as the core's Records, and the source's final rows."""

import gzip
import json
from base64 import b64decode
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np

from ch_sink.model.change import Headers, Records
from ch_sink.ports import RegisteredSchema
from tests.support.memory_stream import MemoryRegistry

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"


@dataclass(frozen=True, slots=True)
class Recorded:
    """One Kafka record as it was recorded; ``timestamp`` in milliseconds since 1970."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class TruthTable:
    """The source's final rows of one table, as text (binary as hex, NULL as None), in the source's order."""

    name: str
    columns: tuple[dict[str, Any], ...]
    """Each with ``name``, ``type`` (the source's), ``key``, on PostgreSQL also ``generated``."""
    rows: tuple[tuple[str | None, ...], ...]
    replica_identity: str | None = None

    @property
    def names(self) -> list[str]:
        return [str(column["name"]) for column in self.columns]

    @property
    def key(self) -> list[str]:
        return [str(column["name"]) for column in self.columns if column["key"]]


def _open(path: Path) -> IO[str]:
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")


def _path(name: str, *suffixes: str) -> Path:
    for folder in (FIXTURES, FIXTURES / "busy"):
        for suffix in suffixes:
            if (folder / f"{name}{suffix}").exists():
                return folder / f"{name}{suffix}"
    raise FileNotFoundError(f"no fixture {name} with {' or '.join(suffixes)} in {FIXTURES}")


def stream_names() -> list[str]:
    """Names of all recorded streams, such as ``mariadb-json_schema-kc`` or ``postgres-busy-json_plain``."""
    found = [*FIXTURES.glob("*.jsonl"), *(FIXTURES / "busy").glob("*.jsonl.gz")]
    return sorted(path.name.removesuffix(".gz").removesuffix(".jsonl") for path in found)


@cache
def read_stream(name: str) -> tuple[Recorded, ...]:
    """All records of a stream in the recording's order (offset order within each partition)."""
    with _open(_path(name, ".jsonl", ".jsonl.gz")) as lines:
        return tuple(parse(line) for line in lines)


def parse(line: str) -> Recorded:
    """One line of a stream's file."""
    fields = json.loads(line)
    headers = tuple((header, _bytes(value)) for header, value in fields["headers"])
    return Recorded(
        fields["topic"],
        fields["partition"],
        fields["offset"],
        fields["timestamp"],
        _bytes(fields["key"]),
        _bytes(fields["value"]),
        headers,
    )


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)


@cache
def topics(name: str) -> dict[str, list[Recorded]]:
    """The stream's records by topic, those without keys as of a topic of one partition; callers leave them as they are.

    They were recorded in one of three, into which the producer had put all of them.
    """
    grouped: dict[str, list[Recorded]] = {}
    for record in read_stream(name):
        grouped.setdefault(record.topic, []).append(record)
    keyed = {topic for topic, found in grouped.items() if any(record.key is not None for record in found)}
    return {t: found if t in keyed else [replace(r, partition=0) for r in found] for t, found in grouped.items()}


def topic_of(name: str, table: str) -> str:
    """The stream's one topic whose last part is ``table``."""
    found = [topic for topic in topics(name) if topic.rpartition(".")[2] == table]
    if len(found) != 1:
        raise LookupError(f"stream {name} has {len(found)} topics for table {table}")
    return found[0]


def partitions(name: str, topic: str) -> dict[int, Records]:
    """The records of one topic of a stream, per partition, as the core takes them."""
    grouped: dict[int, list[Recorded]] = {}
    for record in topics(name)[topic]:
        grouped.setdefault(record.partition, []).append(record)
    return {partition: as_records(grouped[partition]) for partition in sorted(grouped)}


def as_records(recorded: list[Recorded]) -> Records:
    """Records of one topic-partition as ``Records``."""
    places = {(record.topic, record.partition) for record in recorded}
    if len(places) != 1:
        raise ValueError(f"records of {len(places)} topic-partitions, expected one")
    topic, partition = places.pop()
    headers: list[Headers | None] = [list(record.headers) or None for record in recorded]
    return Records(
        topic,
        partition,
        np.array([record.offset for record in recorded], dtype=np.int64),
        np.array([record.timestamp for record in recorded], dtype=np.int64),
        [record.key for record in recorded],
        [record.value for record in recorded],
        headers if any(headers) else None,
    )


@cache
def read_truth(name: str) -> dict[str, TruthTable]:
    """Final source rows by table. ``name``: mariadb, postgres, mariadb-busy or postgres-busy."""
    with _open(_path(name, "-truth.json", "-truth.json.gz")) as file:
        tables = json.load(file)["tables"]
    return {
        table: TruthTable(
            table,
            tuple(found["columns"]),
            tuple(tuple(row) for row in found["rows"]),
            found.get("replica_identity"),
        )
        for table, found in tables.items()
    }


def registry_schemas(database: str) -> dict[int, Any]:
    """Registry contents of the Avro stream of ``mariadb`` or ``postgres``: schema id → what the registry holds."""
    with _open(_path(database, "-avro-schemas.json")) as file:
        return {int(schema_id): schema for schema_id, schema in json.load(file).items()}


@cache
def registry(stream: str) -> MemoryRegistry | None:
    """The registry of an Avro stream; None for the other streams, which need none."""
    if not stream.endswith("-avro"):
        return None
    held = registry_schemas(stream.removesuffix("-avro"))
    assert not any(schema["references"] for schema in held.values())
    return MemoryRegistry({i: RegisteredSchema(schema["schemaType"], schema["schema"]) for i, schema in held.items()})


def sql(name: str) -> str:
    """Text of a fixture's SQL file, such as ``mariadb-ddl`` or ``postgres-busy-ddl``."""
    return _path(name, ".sql").read_text(encoding="utf-8")
