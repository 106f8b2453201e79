"""Change feeds of a table in random batches: repeated, late, split inside commits, killed; the table is equal."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from ch_sink.decode.stated_rows import BUCKET, NUMBER, OP, RowDecoder, Rows
from ch_sink.errors import ConfigError
from ch_sink.model.change import Records
from ch_sink.model.policy import policy_of
from ch_sink.order import State
from ch_sink.order.sequence import Rules
from ch_sink.pipeline.target import Target
from ch_sink.spark import change_rows
from ch_sink.spark.change_feed import OPS
from ch_sink.spark.change_rows import ChangeRows, Newer, _Numbered, expect_served, expect_stated_versions, numbered
from ch_sink.spark.data_source import _coded, _Plan
from ch_sink.spark.frame_stream import FrameStream, Known, Span
from ch_sink.stream.ports import StreamPorts
from ch_sink.stream.run_task import range_steps
from ch_sink.stream.tasks import RangeTask, Task, TaskResult
from ch_sink.table.model import TargetTable
from ch_sink.types.column import Column
from tests.support.choose import each_value
from tests.support.harness import ENGINES
from tests.support.local_runner import LocalRunner
from tests.support.memory_stream import MemoryStream, MemoryTopic

Change = tuple[str, int, int, str | None]
"""Operation, commit, id, value."""
KNOWN = Known("changes", {})
SCHEMA = pa.schema(
    [("id", pa.int64()), ("v", pa.string()), (BUCKET, pa.int32()), (NUMBER, pa.int64()), (OP, pa.int32())]
)


def table(engine: str = "replacing", version: str = "UInt128", **changes: Any) -> TargetTable:
    columns = [
        Column("id", "Int64"),
        Column("v", "Nullable(String)"),
        Column("_version", version),
        Column("_is_deleted", "UInt8"),
    ]
    made = TargetTable("d", "t", ENGINES[engine], tuple(columns), ("id",), place_columns=frozenset(("id",)))
    return replace(made, **changes)


class Feed:
    """A stream in memory that is fed by change rows."""

    def __init__(
        self, version: str = "UInt128", ignored: frozenset[str] = frozenset(), deaths: float = 0.0, seed: int = 0
    ) -> None:
        self.ignored, self.deaths, self.rng = ignored, deaths, random.Random(seed)
        self.memory = MemoryStream(
            table(version=version),
            ("id",),
            MemoryTopic("changes", dict.fromkeys((0, 1), Records("", 0, *[np.zeros(0, np.int64)] * 2, [], []))),
            policy_of(),
            lambda now, _: RowDecoder(now, ("id",), self.ignored, {"id": "bigint", "v": "string"}),
            schema=pa.schema([("id", pa.int64()), ("v", pa.binary())]),
        )
        self.stream: FrameStream | None = None

    def apply(self, batch: Sequence[Change]) -> None:
        """A batch in whatever order; buckets by the id."""
        if self.stream is None:
            ports = self.memory.ports()
            made = StreamPorts(ports.open_ledger(), ports.admin, ports.topics, ports.pending, ports.group)
            self.stream = FrameStream(self.memory.settings, made)
            self.stream.open(KNOWN, 2, lambda _: [])
        rows: dict[int, list[Change]] = {}
        for row in sorted(batch, key=lambda r: (r[1], r[2], int(OPS[r[0]]))):
            rows.setdefault(row[2] % 2, []).append(row)
        reached = self.stream.progress(KNOWN)
        spans = {p: Span(at := reached.get(p, 0), at + len(found), len(found)) for p, found in rows.items()}
        least = {p: min(row[1] for row in found) for p, found in rows.items()}
        looked = ChangeRows("", spans, least, ("id",), self.ignored, {})

        def execute(tasks: Sequence[Task]) -> list[TaskResult]:
            done = [self._run(t, spans, rows, repeats=looked.repeats(t)) for t in tasks if isinstance(t, RangeTask)]
            self._perhaps_die()
            return done

        try:
            self.stream.apply(KNOWN, spans, execute)
        except _Died:
            self.stream.close()
            self.stream = None
            self.apply(batch if self.rng.random() < 0.7 else [*batch, *batch[:1]])

    def _run(
        self, task: RangeTask, spans: dict[int, Span], rows: dict[int, list[Change]], *, repeats: bool
    ) -> TaskResult:
        found = rows[task.partition]
        columns = zip(*((r[2], r[3], task.partition, r[1], int(OPS[r[0]])) for r in found), strict=True)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
        batches = iter(pa.table(arrays, schema=SCHEMA).to_batches(max_chunksize=3))
        source = _Numbered(task, batches, spans[task.partition].first, len(found))
        decoder = RowDecoder(task.table, ("id",), self.ignored, {"id": "bigint", "v": "string"})
        rules = Rules(Target.of(task.table, policy_of()).layout, policy_of().versions, "stated")
        left = Newer(decoder, self.memory.table, rules, task.state) if repeats else None
        local = LocalRunner(self.memory.settings, self.memory.ports())
        steps = range_steps(
            task, lambda t: replace(local.open_task(t), chunks=lambda first: source.chunks(first, ("id",), left))
        )
        while True:
            try:
                next(steps)
            except StopIteration as end:
                done: TaskResult = end.value
                return done
            self._perhaps_die()

    def _perhaps_die(self) -> None:
        if self.rng.random() < self.deaths:
            raise _Died

    def current(self) -> dict[int, str | None]:
        return {r["id"]: r["v"] and r["v"].decode() for r in self.memory.table.current()}


class _Died(Exception):
    pass


def drawn_feed(rng: random.Random) -> tuple[list[Change], dict[int, str | None]]:
    """A feed as Delta writes it, and the table at its end. Keys change, and come back."""
    rows: dict[int, str | None] = {}
    feed: list[Change] = []
    for commit in range(1, rng.randint(5, 25)):
        before = dict(rows)
        for _ in range(rng.randint(1, 5)):
            at, value = rng.randint(1, 6), rng.choice(["a", "b", None, f"v{commit}"])
            kind = rng.random()
            if at not in rows or at not in before or kind < 0.5:
                rows[at] = value
            elif kind < 0.75:
                del rows[at]
            else:
                rows[at + 10] = rows.pop(at)
        for key in sorted({*before, *rows}):
            if key not in before:
                feed.append(("insert", commit, key, rows[key]))
            elif key not in rows:
                feed.append((rng.choice(["delete", "update_preimage"]), commit, key, before[key]))
            elif rows[key] != before[key]:
                feed += [("update_preimage", commit, key, before[key]), ("update_postimage", commit, key, rows[key])]
    return feed, rows


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("version", "late"), each_value(["UInt128", "UInt64"], [False, True]))
def test_tables_equal_their_source_however_the_feed_is_cut(version: str, late: bool) -> None:
    for seed in range(6):
        rng = random.Random(seed)
        feed, truth = drawn_feed(rng)
        fed = Feed(version, deaths=0.2, seed=seed)
        if late:
            rng.shuffle(feed)
        at = 0
        while at < len(feed):
            end = at + rng.randint(1, 12)
            fed.apply(feed[at:end])
            if rng.random() < 0.2:
                fed.apply(feed[max(0, at - 5) : end])
            at = end
        assert fed.current() == truth, seed


def test_a_repeated_batch_stores_nothing() -> None:
    fed = Feed()
    feed, truth = drawn_feed(random.Random(3))
    fed.apply(feed)
    stored = len(fed.memory.table.rows)
    for split in (feed, feed[:7], feed[5:]):
        fed.apply(split)
    assert len(fed.memory.table.rows) == stored
    assert fed.current() == truth


def drawn_partial_updates(rng: random.Random) -> tuple[list[Change], dict[int, str | None]]:
    """Changes in which a null of an update leaves the value as it is, and the table at their end."""
    rows: dict[int, str | None] = {}
    feed: list[Change] = []
    for commit in range(1, rng.randint(5, 25)):
        for at in sorted(rng.sample(range(1, 7), rng.randint(1, 5))):
            op = rng.choice(["insert", "update_postimage", "update_postimage", "delete"])
            value = rng.choice([None, f"v{commit}"])
            feed.append((op, commit, at, value))
            if op == "delete":
                rows.pop(at, None)
            else:
                rows[at] = rows.get(at) if value is None and op != "insert" else value
    return feed, rows


@pytest.mark.long
@pytest.mark.parametrize(("chunk", "deaths"), [(2, 0.03), (50_000, 0.2)])
def test_nulls_of_updates_keep_the_value_however_the_feed_is_cut(
    chunk: int, deaths: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_rows, "_ROWS", chunk)
    for seed in range(6):
        rng = random.Random(seed)
        feed, truth = drawn_partial_updates(rng)
        fed = Feed(ignored=frozenset({"v"}), deaths=deaths, seed=seed)
        at = 0
        while at < len(feed):
            end = at + rng.randint(1, 12)
            fed.apply(feed[at:end])
            if rng.random() < 0.2:
                fed.apply(feed[max(0, at - 5) : end])
            at = end
        assert fed.current() == truth, seed
        assert not fed.memory.dead_letters.list(), seed


def test_updates_insert_no_null_where_the_column_holds_none() -> None:
    fed = Feed(ignored=frozenset({"v"}))
    strict = [Column("v", "String") if c.name == "v" else c for c in fed.memory.detected.columns]
    fed.memory.detected = replace(fed.memory.detected, columns=tuple(strict))
    fed.apply([("insert", 1, 1, "a"), ("insert", 1, 2, None), ("update_postimage", 1, 3, None)])
    fed.apply([("update_postimage", 2, 1, None)])
    assert fed.current() == {1: "a"}
    reasons = sorted(found.letter.reason for found in fed.memory.dead_letters.list())
    assert reasons[0].startswith(
        "column 'v' is null in the update, the table's column cannot hold null, and no earlier"
    )
    assert reasons[1:] == ["column v: null, and the table's column cannot hold null"]


def test_a_null_within_a_value_is_refused_where_its_type_cannot_hold_null() -> None:
    """The server would make 0 or an empty text of it."""
    columns = (
        Column("id", "Int64"),
        Column("v", "Array(Map(String, Nullable(Int64)))"),
        Column("t", "Tuple(a Int64, b Array(String))"),
        Column("_version", "UInt128"),
    )
    kinds = {
        "v": pa.list_(pa.map_(pa.string(), pa.int64())),
        "t": pa.struct({"a": pa.int64(), "b": pa.list_(pa.string())}),
    }
    good: dict[str, Any] = {"v": [[("x", None)], []], "t": {"a": 1, "b": ["y"]}}
    wrong = [{"v": [None]}, {"t": {"a": None, "b": []}}, {"t": {"a": 1, "b": ["y", None]}}]
    values = [good, *({**good, **one} for one in wrong), good]
    n = len(values)
    rows = pa.table(
        {
            "id": range(n),
            **{name: pa.array([value[name] for value in values], kind) for name, kind in kinds.items()},
            BUCKET: pa.nulls(n, pa.int32()),
            NUMBER: range(n),
            OP: pa.array([OPS["insert"]] * n, pa.int32()),
        }
    )
    decoder = RowDecoder(table(columns=columns), ("id",))
    batch = decoder.decode(Records("t", 0, np.arange(n), np.zeros(n, np.int64), [b"{}"] * n, Rows(rows)))  # type: ignore[arg-type]
    assert [(record.index, record.column) for record in batch.bad] == [(1, "v"), (2, "t"), (3, "t")]
    assert "a null within it, and the table's Tuple(a Int64, b Array(String)) cannot hold one" in batch.bad[1].reason


@pytest.mark.parametrize("number", [-1, 1 << 54])
def test_numbers_that_no_version_holds_are_refused(number: int) -> None:
    fed = Feed()
    with pytest.raises(ConfigError, match=f"sequence_by: {number} is outside of 0 to 2\\^54 - 1"):
        fed.apply([("insert", 1, 1, "a"), ("insert", number, 1, "b")])
    fed.stream.close()
    fed.stream = None
    fed.apply([("insert", 1, 1, "a")])
    assert fed.current() == {1: "a"}
    kinds = {"id": "bigint", "v": "string", "at": "bigint"}
    plan = _Plan("", table(), ("id",), "at", None, frozenset({"at"}), kinds)
    rows = pa.RecordBatch.from_pydict({"id": [1, 1], "v": ["a", "b"], "at": [1, number]})
    task = RangeTask("s", "changes", "changes", 0, table(), 0, 1 << 40, State())
    [written] = numbered(task, iter([_coded(plan, rows)]), 0, ("id",))
    with pytest.raises(ConfigError, match="is outside of 0"):
        RowDecoder(table(), ("id",)).decode(written.records)


def test_values_that_do_not_fit_are_dead_letters() -> None:
    fed = Feed()
    narrow = [Column("id", "Int8") if c.name == "id" else c for c in fed.memory.detected.columns]
    fed.memory.detected = replace(fed.memory.detected, columns=tuple(narrow))
    fed.apply([("insert", 1, 1, "a"), ("insert", 1, 1000, "b")])
    assert fed.current() == {1: "a"}
    [stored] = fed.memory.dead_letters.list()
    assert "column id: 1000 does not fit Int8" in stored.letter.reason
    assert json.loads(stored.letter.key or b"") == {"id": 1000}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (table("collapsing"), "is a CollapsingMergeTree: changes need versions"),
        (table("sign"), "changes need versions and delete marks"),
        (table(version="DateTime64(3)"), "are times, which several changes may share"),
        (table(sorting_key=("id", "v"), place_columns=frozenset(("id", "v"))), "depends on 'v'"),
        (table(columns=(Column("v", "String"), *table().columns[2:])), "has no column 'id'"),
    ],
)
def test_other_tables_are_refused(given: TargetTable, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        expect_served(given, ("id",), {"id": "bigint"})


KEYS = [
    ("string", "String", True),
    ("string", "LowCardinality(String)", True),
    ("string", "Enum8('a' = 1)", True),
    ("string", "Int64", False),
    ("string", "UUID", False),
    ("string", "Date", False),
    ("string", "FixedString(4)", False),
    ("string collate UTF8_LCASE", "String", False),
    ("binary", "UUID", True),
    ("binary", "FixedString(16)", False),
    ("bigint", "Int32", True),
    ("bigint", "Float32", False),
    ("decimal(9,2)", "Decimal(18, 2)", True),
    ("decimal(20,2)", "Float64", False),
    ("double", "Float32", False),
    ("timestamp", "DateTime64(6, 'UTC')", True),
    ("timestamp", "DateTime64(3, 'UTC')", False),
    ("timestamp", "Date", False),
    ("timestamp_ntz", "DateTime", False),
    ("date", "Date", True),
    ("array<int>", "String", False),
]
"""Type of a key in Spark, that of its column, and whether keys that differ stay so there."""


@pytest.mark.parametrize(("kind", "column", "apart"), KEYS)
def test_keys_that_a_column_may_merge_are_refused(kind: str, column: str, apart: bool) -> None:
    given = table(columns=(Column("id", column), *table().columns[1:]))
    if apart:
        expect_served(given, ("id",), {"id": kind})
        return
    with pytest.raises(ConfigError, match="that differ can be one value of") as found:
        expect_served(given, ("id",), {"id": kind})
    assert "Cast it in the DataFrame" in (found.value.hint or "")


def test_rows_of_later_epochs_are_refused() -> None:
    expect_stated_versions(table(), (1 << 112) - 1)
    expect_stated_versions(table(version="UInt64"), 1 << 60)
    with pytest.raises(ConfigError, match="versions that are not change numbers"):
        expect_stated_versions(table(), 1 << 112)


def test_rows_from_before_a_new_column_have_null_in_it() -> None:
    """As in the tables that the feeds of Delta and Iceberg come from."""
    rows = pa.table(
        {
            "id": pa.array([1], pa.int64()),
            "points": pa.array([5], pa.int32()),
            BUCKET: pa.nulls(1, pa.int32()),
            NUMBER: [0],
            OP: pa.array([OPS["insert"]], pa.int32()),
        }
    )
    decoder = RowDecoder(table(), ("id",), frozenset(), {"id": "bigint", "points": "int"})
    batch = decoder.decode(Records("t", 0, np.arange(1), np.zeros(1, np.int64), [b"{}"], Rows(rows)))  # type: ignore[arg-type]
    assert [(c.name, c.clickhouse_type, c.filled) for c in batch.unknown] == [("points", "Nullable(Int32)", True)]
