"""Feeds a drawn history through the product's coordinator into a table, with cuts, interleavings, kills and retries."""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ch_sink.decode.key_layouts import KeyForm
from ch_sink.model.change import ChangeBatch, Records, Skipped
from ch_sink.model.policy import Policy, TopicProfile, policy_of
from ch_sink.pipeline.plans import BatchDecoder
from ch_sink.ports import History as LedgerHistory
from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.table.rollup import RollupChoice
from ch_sink.types.column import Column
from tests.model import Batch, History, KafkaRecord, Layout
from tests.model.plans import Fault
from tests.support.kills import Kill
from tests.support.local_runner import LocalBatch, LocalRunner
from tests.support.memory_stream import MemoryStream, MemoryTopic
from tests.support.rollups import with_rollups

PLACEHOLDER = "__debezium_unavailable_value"
ARROW = {"int64": pa.int64(), "int32": pa.int32(), "string": pa.string()}


class PlainDecoder:
    """Decodes for one layout of the model."""

    def __init__(self, layout: Layout, *, want_before: bool) -> None:
        self.table = layout.table
        self.want_before = want_before
        self.schema = pa.schema([(c.name, pa.date32() if c.semantic else ARROW[c.connect]) for c in self.table.columns])

    def learn(
        self, records: Records, profile: TopicProfile | None = None, history: LedgerHistory | None = None
    ) -> TopicProfile:
        return TopicProfile(key_columns=self.table.key)

    def key_values(self, keys: list[bytes], profile: TopicProfile) -> list[tuple[Any, ...] | None]:
        raise NotImplementedError

    def key_forms(self, keys: Sequence[bytes | None]) -> list[KeyForm]:
        return [KeyForm("", "JSON without schema", 0)]

    def decode(self, records: Records, profile: TopicProfile | None = None, *, waited: bool = False) -> ChangeBatch:
        skipped: dict[Skipped, list[int]] = {}
        rows, index, keys = [], [], []
        for i, value in enumerate(records.values):
            if value is None:
                skipped.setdefault(Skipped.TOMBSTONE, []).append(i)
                continue
            body = json.loads(value)
            body = body.get("payload", body)
            if "op" not in body:
                skipped.setdefault(Skipped.TRANSACTION if "status" in body else Skipped.HEARTBEAT, []).append(i)
                continue
            rows.append(body)
            index.append(i)
            key = json.loads(records.keys[i]) if records.keys[i] is not None else None
            keys.append(key.get("payload", key) if isinstance(key, dict) else key)
        n = len(rows)
        commit, inner, has = [], [], []
        for body in rows:
            c, i, h = position(body["source"])
            commit.append([c >> 64, c & (2**64 - 1)])
            inner.append([i >> 64, i & (2**64 - 1)])
            has.append(h)
        names = [b["source"]["name"] for b in rows]
        distinct = sorted(set(names))
        columns = {c.name for c in self.table.columns}
        unavailable = {}
        for name in columns:
            mask = np.array([bool(b["after"]) and b["after"].get(name) == PLACEHOLDER for b in rows], dtype=bool)
            if mask.any():
                unavailable[name] = mask
        half = [self.half(records, i, b["op"]) for i, b in zip(index, rows, strict=True)]
        return ChangeBatch(
            source_index=np.array(index, dtype=np.int64),
            offset=records.offsets[np.array(index, dtype=np.int64)],
            op=np.array([ord(b["op"]) for b in rows], dtype=np.uint8),
            commit=np.array(commit, dtype=np.uint64).reshape(n, 2),
            inner=np.array(inner, dtype=np.uint64).reshape(n, 2),
            has_commit=np.array(has, dtype=bool),
            source_ts=np.array([b["source"].get("ts_ms") or 0 for b in rows], dtype=np.int64),
            source_name=distinct,
            source_code=np.array([distinct.index(x) for x in names], dtype=np.int16),
            half=np.array(half, dtype=np.uint8),
            key=self.keys(keys) if self.table.key else None,
            after=self.image([b["after"] for b in rows]),
            before=self.image([b["before"] for b in rows]) if self.want_before else None,
            has_before=np.array([b["before"] is not None for b in rows], dtype=bool),
            unavailable=unavailable,
            skipped=skipped,
            connector=rows[0]["source"]["connector"] if rows else "",
        )

    @staticmethod
    def half(records: Records, i: int, op: str) -> int:
        names = {h for h, _ in (records.headers[i] or [])} if records.headers else set()
        if op == "d" and "__debezium.newkey" in names:
            return 1
        return 2 if op == "c" and "__debezium.oldkey" in names else 0

    def keys(self, keys: list) -> pa.Table:
        fields = [self.schema.field(k) for k in self.table.key]
        return pa.table(
            [pa.array([k[f.name] if k else None for k in keys], f.type) for f in fields], schema=pa.schema(fields)
        )

    def image(self, images: list) -> pa.Table:
        columns = []
        for field in self.schema:
            found = [None if i is None or i[field.name] == PLACEHOLDER else i[field.name] for i in images]
            columns.append(pa.array(found, pa.int32() if field.type == pa.date32() else field.type).cast(field.type))
        return pa.table(columns, schema=self.schema)


def position(source: dict) -> tuple[int, int, bool]:
    """(commit, inner, has commit) of a source block."""
    if "file" in source:
        number = int(source["file"].rpartition(".")[2] or 0) if source["file"] else 0
        return (number << 40) | source["pos"], (source["pos"] << 64) | source["row"], True
    if source["connector"] == "oracle":
        scn, commit, place = int(source["scn"]), int(source["commit_scn"] or 0), 0
        if source["lcr_position"]:
            raw = bytes.fromhex(source["lcr_position"])
            commit, scn, place = (int.from_bytes(raw[a : a + 8], "big") for a in (0, 16, 24))
        elif source["rs_id"]:
            block, byte = source["rs_id"].split(".")[1:]
            place = int.from_bytes(bytes.fromhex(block + byte), "big") << 16 | source["ssn"]
        return commit or scn, scn << 64 | place, commit != 0
    if source["connector"] == "db2":
        commit, change = (bytes.fromhex((source[f] or "").replace(":", "")) for f in ("commit_lsn", "change_lsn"))
        return (
            int.from_bytes(commit[:10], "big"),
            int.from_bytes(commit[10:] + change[-10:].rjust(10, b"\0"), "big"),
            True,
        )
    if "offsets" in source:
        return 0, int(source["offsets"][source["partitionId"]], 16) & (2**128 - 1), False
    if "lsn" in source:
        first = json.loads(source["sequence"])[0] if source["sequence"] else None
        return int(first) if first is not None else source["lsn"] or 0, source["lsn"] or 0, first is not None
    if "commit_lsn" in source:

        def number(text):
            return int(text.replace(":", ""), 16) if text else 0

        return (
            number(source["commit_lsn"]),
            (number(source["change_lsn"]) << 48) | int(source["event_serial_no"] or 0),
            bool(source["commit_lsn"]),
        )
    return 0, 0, True


ENGINES = {
    "replacing": Engine(Family.REPLACING, "ReplacingMergeTree", "_version", is_deleted_column="_is_deleted"),
    "sign": Engine(Family.REPLACING, "ReplacingMergeTree", "_version", sign_column="_sign"),
    "collapsing": Engine(Family.COLLAPSING, "CollapsingMergeTree", sign_column="_sign"),
    "versioned": Engine(Family.VERSIONED_COLLAPSING, "VersionedCollapsingMergeTree", "_version", "_sign"),
    "append": Engine(Family.MERGE_TREE, "MergeTree"),
    "append without key": Engine(Family.MERGE_TREE, "MergeTree"),
}


VERSIONS = ("UInt64", "Int64", "UInt128", "UInt256")
"""Types of version columns that tables made by hand have."""


def target_table(layout: Layout, engine: Engine, version: str = "UInt128") -> TargetTable:
    """The target of a model's layout. ``version``: type of its version column."""
    columns = [Column(c.name, c.clickhouse) for c in layout.table.columns]
    columns.append(Column("_version", version))
    if engine.sign_column:
        columns.append(Column("_sign", "Int8"))
    if engine.is_deleted_column:
        columns.append(Column("_is_deleted", "UInt8"))
    if engine.family is Family.MERGE_TREE:
        columns += [Column("_op", "String"), Column("_sign", "Int8"), Column("_source_time", "DateTime64(3)")]
    names = {c.name for c in layout.table.columns}
    used = set(layout.order_by) | {n for n in names if re.search(rf"\b{n}\b", layout.partition_by or "")}
    return TargetTable(
        "default",
        "t",
        engine,
        tuple(columns),
        sorting_key=layout.order_by,
        partition_key=layout.partition_by or "",
        place_columns=frozenset(used),
        dedup_window=10_000,
    )


def as_records(topic: str, partition: int, records: list[KafkaRecord]) -> Records:
    return Records(
        topic,
        partition,
        np.array([r.offset for r in records], dtype=np.int64),
        np.array([r.timestamp for r in records], dtype=np.int64),
        [r.key for r in records],
        [r.value for r in records],
        [list(r.headers) or None for r in records],
    )


def topic_of(history: History) -> MemoryTopic:
    """The history's topic as Kafka holds it."""
    records = {p: as_records(history.topic, p, found) for p, found in history.records.items()}
    return MemoryTopic(history.topic, records, history.ends)


def batches_of(plan: list[Batch], *, collapsing: bool) -> list[LocalBatch]:
    """A drawn plan as the runner carries it out."""
    return [
        LocalBatch(
            batch.ranges,
            {p: [c.end for c in batch.chunks if c.partition == p] for p in batch.ranges},
            [chunk.partition for chunk in batch.chunks],
            [_kill_of(fault, collapsing) for fault in batch.faults],
        )
        for batch in plan
    ]


def _kill_of(fault: Fault, collapsing: bool) -> Kill:
    if fault.point == "before_insert":
        return Kill("before insert", step=fault.chunk)
    if fault.point == "after_insert":
        return Kill("after insert", nth=fault.inserts, step=fault.chunk)
    return Kill("before progress" if collapsing else "after step", step=fault.chunk)


class Run:
    """One stream over a history, in memory unless other ports are given."""

    def __init__(
        self,
        history: History,
        engine: Engine,
        *,
        policy: Policy | None = None,
        decoder: Callable[[bool], BatchDecoder] | None = None,
        schema: pa.Schema | None = None,
        version: str = "UInt128",
        rollups: Sequence[RollupChoice] = (),
    ) -> None:
        """``schema``: source columns as the decoder gives them; by default as the plain decoder does."""
        self.history = history
        plain = PlainDecoder(history.layout, want_before=False).schema
        made = decoder or (lambda want: PlainDecoder(history.layout, want_before=want))
        self.stream = MemoryStream(
            with_rollups(target_table(history.layout, engine, version), rollups),
            history.key,
            topic_of(history),
            policy or policy_of(truncate="apply", on_bad_record="fail"),
            lambda _, want: made(want),
            schema=plain if decoder is None else schema or plain,
        )
        self.table, self.letters = self.stream.table, self.stream.dead_letters
        self.runner = LocalRunner(self.stream.settings, self.stream.ports(), after_batch=self._look)
        self.collapsing = engine.family in (Family.COLLAPSING, Family.VERSIONED_COLLAPSING)
        self.between: list[str] = []
        """What was wrong after a batch: signs of a collapsing table that sum to neither 0 nor 1."""

    def run(self, plan: list[Batch]) -> None:
        self.run_batches(batches_of(plan, collapsing=self.collapsing))

    def run_batches(self, batches: list[LocalBatch]) -> None:
        self.runner.run(batches)
        self.runner.stop()

    @property
    def waiting(self) -> int:
        """Changes that still wait for values."""
        return len(self.stream.pending)

    def _look(self) -> None:
        if self.collapsing:
            wrong = {k: n for k, n in self.table.sums().items() if n not in (0, 1)}
            self.between += [f"after a batch: signs of {k} sum to {n}" for k, n in wrong.items()]
