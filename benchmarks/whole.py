"""The whole job on a generated topic, and a plain consumer and a plain insert in the same run.

    python -m benchmarks --events 1000000 --repeat 3 --grow 4

The limit is what consuming and inserting one after the other reaches: 1 / (1/consume + 1/insert).
"""

import json
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import yaml
from confluent_kafka import Producer

from benchmarks.events import COLUMNS, events
from benchmarks.machine import Memory
from ch_sink.clickhouse import ClickHouseSettings, ClickHouseWriter, Client, connect, create_statement, detect, execute
from ch_sink.config import load
from ch_sink.decode import Decoder
from ch_sink.kafka import KafkaSettings, RangeConsumer
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka.broker import LocalKafka
from ch_sink.model.change import Records
from ch_sink.model.policy import policy_of
from ch_sink.ports import Insert
from ch_sink.spark.job import run_streams

__all__ = ["Figures", "run"]

PARTITIONS = 4


@dataclass
class Figures:
    """Events per second, one entry per repeat; memory in MiB."""

    consume: list[float]
    insert: list[float]
    decode: list[float]
    whole: list[float]
    memory: list[float]

    def limit(self, i: int) -> float:
        return 1 / (1 / self.consume[i] + 1 / self.insert[i])

    def ratios(self) -> list[float]:
        return [self.whole[i] / self.limit(i) for i in range(len(self.whole))]


def run(count: int, repeat: int) -> Figures:
    """Measure ``repeat`` times on one topic of ``count`` events."""
    out = Figures([], [], [], [], [])
    with LocalKafka() as kafka, EmbeddedClickHouse() as clickhouse, tempfile.TemporaryDirectory() as folder:
        kafka.create_topic("orders", PARTITIONS)
        _fill(kafka.bootstrap, count)
        client = connect(ClickHouseSettings(url=clickhouse.url))
        client.command("CREATE DATABASE shop")
        names = ("ledger", "dead_letters", "handover", "pending")
        execute(client, [create_statement(n, "shop", f"ch_sink_{n}") for n in names])
        _once(client, kafka.bootstrap, clickhouse.url, Path(folder), "warm")  # starts JVM and workers
        for i in range(repeat):
            rate, sample = _consume(kafka.bootstrap, count)
            out.consume.append(rate)
            rate, rows = _decode(client, sample)
            out.decode.append(rate)
            out.insert.append(_insert(client, rows, count))
            with Memory() as memory:
                out.whole.append(_once(client, kafka.bootstrap, clickhouse.url, Path(folder), f"run{i}"))
            out.memory.append(memory.peak)
    return out


def _fill(bootstrap: str, count: int) -> None:
    # Idempotent: a retried batch must not overtake the next one, as no connector lets it.
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50, "enable.idempotence": True})
    for partition, key, value in events(count, PARTITIONS):
        while True:
            try:
                producer.produce("orders", value, key, partition=partition)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush(120)


def _table(client: Client, name: str) -> None:
    client.command(f"DROP TABLE IF EXISTS shop.{name}")
    client.command(
        f"CREATE TABLE shop.{name} ({COLUMNS}, `_version` UInt128, `_is_deleted` UInt8) "
        "ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 10000"
    )


def _consume(bootstrap: str, count: int) -> tuple[float, Records]:
    """The sink's consumer alone: reads the topic and drops the records."""
    consumer = RangeConsumer(KafkaSettings({"bootstrap.servers": bootstrap}))
    sample: Records | None = None
    seen, began = 0, time.perf_counter()
    for partition in range(PARTITIONS):
        _, high = consumer.watermarks("orders", partition)
        for records in consumer.read("orders", partition, 0, high, 50_000):
            seen += len(records)
            sample = sample or records
    seconds = time.perf_counter() - began
    consumer.close()
    assert seen == count
    assert sample is not None
    return count / seconds, sample


def _decode(client: Client, sample: Records) -> tuple[float, pa.Table]:
    """Decodes one chunk repeatedly; the second figure is a by-product."""
    _table(client, "plain")
    decoder = Decoder(detect(client, "shop", "plain", policy_of()), policy_of())
    decoder.decode(sample)
    began, times = time.perf_counter(), 5
    for _ in range(times):
        batch = decoder.decode(sample)
    return times * len(sample) / (time.perf_counter() - began), batch.after


def _insert(client: Client, rows: pa.Table, count: int) -> float:
    """Inserts as many prepared rows as there are events, in blocks of a chunk, without tokens."""
    writer = ClickHouseWriter(client, detect(client, "shop", "plain", policy_of()))
    done, began = 0, time.perf_counter()
    while done < count:
        part = rows.slice(0, min(rows.num_rows, count - done))
        writer.write(Insert(part, "x"), f"plain-{done}-{began}")
        done += part.num_rows
    return count / (time.perf_counter() - began)


def _once(client: Client, bootstrap: str, url: str, folder: Path, name: str) -> float:
    _table(client, name)
    path = folder / f"{name}.yaml"
    settings = {
        "kafka": {"topic": "orders", "bootstrap.servers": bootstrap},
        "clickhouse": {"url": url, "database": "shop", "table": name},
        "checkpoint": str(folder / "checkpoints" / name),
        "spark": {"master": "local[2]"},
    }
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    began = time.perf_counter()
    [summary] = run_streams([load(path)], once=True)
    seconds = time.perf_counter() - began
    live = client.rows(f"SELECT count() AS n FROM shop.{name} FINAL")[0]["n"]
    assert live, json.dumps(summary.as_json())
    return summary.figures.records / seconds


def spread(figures: list[float]) -> str:
    """Median with lowest and highest, in thousands."""
    low, high = min(figures), max(figures)
    return f"{statistics.median(figures) / 1000:8.0f} k/s  ({low / 1000:.0f} to {high / 1000:.0f})"
