"""One workload: the job on two lengths of a topic, and in the same run what limits it."""

import time
from dataclasses import asdict, dataclass, field
from typing import Any

import pyarrow as pa

from benchmarks.suite.changes import changes
from benchmarks.suite.formats import encoder
from benchmarks.suite.place import DATABASE, PARTITIONS, Place
from benchmarks.suite.processes import Usage, Watch
from benchmarks.suite.workloads import Workload
from ch_sink.clickhouse import ClickHouseWriter, detect
from ch_sink.config import Config, load
from ch_sink.decode import Decoder
from ch_sink.kafka import KafkaSettings, RangeConsumer, schema_registry
from ch_sink.model.change import Records
from ch_sink.ports import Insert
from ch_sink.spark.job import run_streams

__all__ = ["Repeat", "Result", "measure"]

_CHUNK = 50_000


@dataclass
class Repeat:
    """One repeat. Rates are events per second."""

    steady: float
    """From the difference of the two lengths."""
    whole: float
    """The longer topic with all that a job needs once it runs."""
    consume: float
    insert: float
    cpu: dict[str, float]
    """CPU seconds for a million events, by kind of process; like the steady rate from the difference."""
    start: dict[str, float]
    """CPU seconds of a job beside that, by kind of process: starting and ending."""

    @property
    def limit(self) -> float:
        """Consuming and inserting, one after the other."""
        return 1 / (1 / self.consume + 1 / self.insert)

    @property
    def ratio(self) -> float:
        return self.steady / self.limit


@dataclass
class Result:
    """All repeats of one workload."""

    name: str
    events: int
    bytes_an_event: float
    repeats: list[Repeat] = field(default_factory=list)
    decode: float = 0.0
    """Decoding alone, one core."""
    worker_mib: float = 0.0
    together_mib: float = 0.0
    rows: int = 0
    parts: int = 0
    dead_letters: int = 0

    def as_json(self) -> dict[str, Any]:
        found = asdict(self)
        for one, repeat in zip(found["repeats"], self.repeats, strict=True):
            one |= {"limit": repeat.limit, "ratio": repeat.ratio}
        return found


def measure(where: Place, workload: Workload, events: int, repeats: int) -> Result:
    """Measure on topics of ``events`` and twice as many. Raises RuntimeError if a table lacks events."""
    short, name = int(events * workload.share), workload.name.replace(" ", "_").replace(",", "").replace("%", "p")
    made = encoder(workload.form, workload.rows)
    where.registry.ids = {n: {"schema": text} for n, text in made.schemas.items()}
    topics = {count: f"{name}_{count}" for count in (short, 2 * short)}
    size = 0
    for count, topic in topics.items():
        size = where.fill(topic, made.records(workload.rows, changes(workload.rows, workload.mix, count)))
    result = Result(workload.name, 2 * short, size / (2 * short))
    _job(where, workload, topics[short], f"{name}_warm")
    for number in range(repeats):
        consume, sample = _consume(where, topics[2 * short])
        result.decode, insert = _limits(where, workload, sample, 2 * short, f"{name}_plain")
        seconds: dict[int, float] = {}
        used: dict[int, Usage] = {}
        for count, topic in topics.items():
            table = f"{name}_{number}_{count}"
            with Watch() as watch:
                seconds[count], letters = _job(where, workload, topic, table)
            used[count], result.dead_letters = watch.usage, letters
        usage = used[2 * short]
        more = {kind: s - used[short].cpu.get(kind, 0.0) for kind, s in usage.cpu.items()}
        cpu = {kind: s / short * 1e6 for kind, s in more.items()}
        start = {kind: used[short].cpu.get(kind, 0.0) - s for kind, s in more.items()}
        gained = max(seconds[2 * short] - seconds[short], 1e-3)
        result.repeats.append(Repeat(short / gained, 2 * short / seconds[2 * short], consume, insert, cpu, start))
        result.worker_mib = max(result.worker_mib, usage.memory.get("workers", 0.0))
        result.together_mib = max(result.together_mib, usage.most)
        result.rows, result.parts = _stored(where, table)
    return result


def _job(where: Place, workload: Workload, topic: str, table: str) -> tuple[float, int]:
    """Run the job on a fresh table; seconds and dead letters."""
    where.table(workload, table)
    config = load(where.config(workload, topic, table))
    began = time.perf_counter()
    [summary] = run_streams([config], once=True)
    seconds = time.perf_counter() - began
    if not where.client.rows(f"SELECT count() AS n FROM {DATABASE}.{table}")[0]["n"]:
        raise RuntimeError(f"{workload.name}: no row arrived ({summary.counts.dead_letters} dead letters)")
    return seconds, summary.counts.dead_letters


def _consume(where: Place, topic: str) -> tuple[float, Records]:
    """The sink's consumer alone: reads the topic and drops the records."""
    consumer = RangeConsumer(KafkaSettings({"bootstrap.servers": where.kafka.bootstrap}))
    sample: Records | None = None
    seen, began = 0, time.perf_counter()
    for partition in range(PARTITIONS):
        _, high = consumer.watermarks(topic, partition)
        for records in consumer.read(topic, partition, 0, high, _CHUNK):
            seen += len(records)
            sample = sample if sample is not None and len(sample) >= len(records) else records
    seconds = time.perf_counter() - began
    consumer.close()
    assert sample is not None
    return seen / seconds, sample


def _limits(where: Place, workload: Workload, sample: Records, count: int, table: str) -> tuple[float, float]:
    """Events per second of decoding alone, and of inserting the same rows in blocks of a chunk without tokens."""
    where.table(workload, table)
    config = load(where.config(workload, "any", table))
    target = detect(where.client, DATABASE, table, config.policy())
    decoder = _decoder(config, target)
    decoder.decode(sample)
    best = 1e9
    for _ in range(3):
        began = time.perf_counter()
        batch = decoder.decode(sample)
        best = min(best, time.perf_counter() - began)
    writer, rows = ClickHouseWriter(where.client, target), batch.after
    if target.engine.sign_column:
        rows = rows.append_column(target.engine.sign_column, pa.array([1] * len(rows), pa.int8()))
    done, began = 0, time.perf_counter()
    while done < count:
        part: pa.Table = rows.slice(0, min(rows.num_rows, count - done))
        writer.write(Insert(part, "x"), f"plain-{done}-{began}")
        done += part.num_rows
    return len(sample) / best, count / (time.perf_counter() - began)


def _decoder(config: Config, target: Any) -> Decoder:
    return Decoder(target, config.policy(), format=config.format, registry=schema_registry(config.kafka.registry()))


def _stored(where: Place, table: str) -> tuple[int, int]:
    """Rows stored and parts made by inserts; the server's own log of parts where it keeps one."""
    rows = where.client.rows(f"SELECT count() AS n FROM {DATABASE}.{table}")[0]["n"]
    [found] = where.client.rows(
        "SELECT max(max_block_number) + 1 AS n FROM system.parts "
        f"WHERE database = '{DATABASE}' AND table = '{table}' AND active"
    )
    return int(rows), int(found["n"])
