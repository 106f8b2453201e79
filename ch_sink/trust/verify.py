"""The procedure of ``verify``: fold the topic to what the stream has applied, compare, and judge what differs.

    L = offsets that the stream has applied ─▶ fold to L ─▶ compare ─▶ H = offsets that it may have touched by now
      ─▶ fold to H ─▶ a key whose source row has changed between L and H is not judged; it is compared again later

Nothing is locked and nothing is stopped. The table holds everything below L, and nothing from H on; a key that differs,
and has no event between both, differs indeed.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Literal

from ch_sink.clickhouse import Client
from ch_sink.errors import ConfigError, StreamFailed
from ch_sink.model.counted import counted
from ch_sink.order import State
from ch_sink.pipeline.target import Target
from ch_sink.ports import Ledger
from ch_sink.snapshot import DivisibleReader, SourceReader
from ch_sink.stream.coordinator import StreamSettings
from ch_sink.stream.reading_again import expect_entered
from ch_sink.table.model import Family, TargetTable
from ch_sink.trust.differences import Differences
from ch_sink.trust.fold import Fold, MakeDecoder
from ch_sink.trust.history import begin_at_load, is_incomplete, without_history
from ch_sink.trust.load import ROWS, SnapshotColumn, load, snapshot_columns, store
from ch_sink.trust.parallel import LEAST, PARTS, Filling, load_parts
from ch_sink.trust.repaired_versions import ceilings
from ch_sink.trust.report import Report
from ch_sink.trust.shadow import shadow_of, shadow_tables
from ch_sink.trust.sides import Side
from ch_sink.trust.topic import Reached, TopicReader, reached
from ch_sink.types.column import Column
from ch_sink.types.connect import RowSchema
from ch_sink.types.sql import literal, quote

__all__ = ["FOUND", "Options", "Subject", "Verified", "states_at", "verified"]

FOUND = 10_000
"""Step of the keys that differ."""
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Subject:
    """One stream and its table."""

    client: Client
    settings: StreamSettings
    table: TargetTable
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    """The columns that the stream fills."""
    database: str
    """Where the shadow is made."""
    topic: TopicReader
    decoder: MakeDecoder
    ledger: Ledger
    """The stream's own; it is read, and claimed only by a repair that needs the stream to stand still."""
    schema: RowSchema | None = None
    """The row type that the topic shows."""
    source: Callable[[], SourceReader] | None = None
    """Opens the source table, if the configuration has one."""
    condition: str = ""
    """SQL that tells the stream's rows from those of other streams in the same table."""

    def reached(self, topic_id: str) -> Reached:
        """How far the stream has come in this topic."""
        return reached(self.ledger, topic_id)


@dataclass(frozen=True, slots=True)
class Options:
    """What of the table is compared."""

    columns: tuple[str, ...] = ()
    """Names of the columns that are compared, besides the key; empty for all."""
    condition: str = ""
    share: float = 1.0
    examples: int = 10
    against: Literal["source", "topic"] = "topic"
    patience: float = 30.0
    """Seconds to wait for the stream to apply what keys that change need to be judged."""
    bounds: tuple[int | None, int | None] | None = None
    """Only rows whose first key column lies between these, the second excluded; None for no limit."""
    parallel: int = 0
    """Processes that read the source; 0 for one on a small table, and up to four on a large one."""


@dataclass(frozen=True, slots=True)
class Verified:
    """The outcome, while the shadow still exists."""

    report: Report
    differences: Differences
    source: Side
    target: Side
    topic_id: str
    applied: dict[int, int]
    """Offsets that the stream had applied when the comparison began."""


@contextmanager
def verified(subject: Subject, options: Options, say: Callable[[str], None] = lambda _: None) -> Iterator[Verified]:
    """Compare a table with its topic; the shadow and what was found exist until the context ends.

    Raises StreamFailed if the comparison is impossible, and ChSinkError of Kafka and ClickHouse.
    """
    began = time.monotonic()
    shape = shadow_of(subject.table, subject.database, subject.key, subject.columns)
    with ExitStack() as open_, shadow_tables(subject.client, shape) as shadow:
        topic = subject.topic.state(subject.settings.topic)
        at = subject.reached(topic.topic_id)
        expect_entered(subject.table, subject.ledger, topic.topic_id)
        if not at.applied:
            raise StreamFailed(
                f"stream {subject.settings.name!r} has read nothing of topic {topic.topic} yet",
                hint="Run it first: `ch_sink run CONFIG`.",
            )
        fold = Fold(subject.client, shadow.table, subject.settings, subject.topic, subject.decoder)
        open_.callback(fold.close)
        compared, passes, base = _chosen(subject, options), 0, 0
        if options.against == "source":
            states = states_at(subject, topic.topic_id, at.applied)
            fold.begin(at.applied, states)
            limits = ceilings(Target.of(subject.table, subject.settings.policy), states)
            # Above the last change, which may have been lost; without a key, versions tell what was touched since.
            base = max(limits[0] + bool(subject.key), 0) if limits else 0
            compared, passes = _read_source(subject, options, shadow.table, compared, base, say)
        else:
            began_at = begin_at_load(fold, subject.ledger, topic)
            say(f"folding {counted(sum(at.applied.values()) - began_at, 'offset')} of {topic.topic}")
        incomplete = options.against == "topic" and is_incomplete(subject.ledger, topic)
        fold.to(at.applied)
        _expect_whole(fold, incomplete)
        conditions = (subject.condition, options.condition, _within(subject, options))
        wanted = " AND ".join(f"({text})" for text in conditions if text)
        source, target = (Side(table, subject.key, compared, wanted) for table in (shape, subject.table))
        differences = Differences(subject.client, shadow.differences, source, target, options.share)
        say("comparing checksums")
        totals = differences.totals()
        found = differences.find(0, totals)
        touched = 0
        if options.against == "source" and found:
            _wait_for_source(subject, options, fold, passes, topic.topic_id)
            found = differences.find_among(20, 0)
            if not subject.key:
                touched = _drop_touched(differences, 20, base)
                found -= touched
        changing = touched + _judge(subject, options, fold, differences, found, topic.topic_id, 20 if passes else 0)
        unknown = without_history(differences, FOUND, incomplete=incomplete)
        if _ignores_deletes(subject):
            differences.drop(FOUND, "kind = 'extra' AND source_version != ''")
        kinds = differences.kinds(FOUND)
        report = Report(
            subject.settings.name,
            subject.table.qualified.replace("`", ""),
            options.against,
            totals.table_rows,
            kinds.get("missing", 0),
            kinds.get("extra", 0),
            kinds.get("different", 0),
            differences.columns(FOUND) if kinds.get("different") else {},
            tuple(differences.examples(FOUND, options.examples)),
            changing,
            unknown,
            sum(fold.letters.kinds.values()),
            options.share,
            time.monotonic() - began,
            ", ".join(f"{p}: {offset}" for p, offset in sorted(fold.at.items())),
            tuple(c.name for c in subject.columns if c not in compared and not options.columns),
        )
        yield Verified(report, differences, source, target, topic.topic_id, at.applied)


def states_at(subject: Subject, topic_id: str, applied: Mapping[int, int]) -> dict[int, tuple[int, State]]:
    """The stream's state at the offsets that it had applied, by partition; without those that it has not recorded."""
    texts = {p: subject.ledger.state_at(topic_id, p, offset) for p, offset in applied.items()}
    return {p: (applied[p], State.from_json(text)) for p, text in texts.items() if text}


def _read_source(
    subject: Subject,
    options: Options,
    shadow: TargetTable,
    compared: tuple[Column, ...],
    version: int,
    say: Callable[[str], None],
) -> tuple[tuple[Column, ...], int]:
    """Fill the shadow with the source's rows; the columns that can be compared, and the source's position after that.

    The rows get the version of what the stream had applied before they were read: every event from there on wins.
    Rows without a key cannot win: what an event touches from there on may be counted twice (`_drop_touched`).
    """
    if subject.source is None:
        raise ConfigError(
            "the configuration has no section source",
            hint="Add source.url, source.username and source.password, or compare --against topic.",
        )
    with closing(subject.source()) as reader:
        chosen = snapshot_columns(subject.table, compared, subject.key, subject.schema, subject.settings.policy, reader)
        say("reading the source")
        rows = _load(subject, options, shadow, compared, chosen, reader, version, say)
        passes = reader.position()
    if subject.key:
        listed = ", ".join(quote(name) for name in subject.key)
        kept = subject.client.rows(
            f"SELECT count() AS n FROM (SELECT {listed} FROM {shadow.qualified} GROUP BY {listed})",
            settings={"max_bytes_before_external_group_by": 1 << 30},
        )
        if int(kept[0]["n"]) != rows:
            raise StreamFailed(
                f"the key ({', '.join(subject.key)}) is not unique in the source: {rows} rows, {kept[0]['n']} keys",
                hint="Set key_columns, or check source.table.",
            )
    return tuple(column.table for column in chosen), max(passes, 1)


def _load(
    subject: Subject,
    options: Options,
    shadow: TargetTable,
    compared: tuple[Column, ...],
    chosen: Sequence[SnapshotColumn],
    reader: SourceReader,
    version: int,
    say: Callable[[str], None],
) -> int:
    """Fill the shadow: by several processes, if the table is large and the source can be divided."""
    if options.bounds is not None and isinstance(reader, DivisibleReader):
        [column] = [one.source for one in chosen if one.table.name == subject.key[0]]
        batches = reader.part(reader.between(column, *options.bounds), [one.source for one in chosen], ROWS)
        return store(subject.client, shadow, chosen, batches, version, "")
    processes = options.parallel or min(4, os.cpu_count() or 1)
    if processes > 1 and isinstance(reader, DivisibleReader) and (options.parallel or reader.estimate() >= LEAST):
        parts = reader.parts(processes * PARTS)
        if len(parts) > 1:
            policy = subject.settings.policy
            server, table = subject.client.settings, subject.table
            filling = Filling(
                reader.address, server, table, shadow, compared, subject.key, subject.schema, policy, version
            )
            return load_parts(filling, parts, processes, say)
    return load(subject.client, shadow, chosen, reader, version)


def _wait_for_source(subject: Subject, options: Options, fold: Fold, passes: int, topic_id: str) -> None:
    """Go on until the stream has passed the position at which the source was read.

    An event of that position or a later one proves it. A table without such events gives no proof; then the time that
    the connector has had must do.
    """
    deadline = time.monotonic() + options.patience
    while fold.commit() < passes and time.monotonic() < deadline:
        time.sleep(0.5)
        fold.to(subject.reached(topic_id).applied)
    high = subject.topic.state(subject.settings.topic).high
    _wait(subject, topic_id, high, options.patience)
    fold.to(subject.reached(topic_id).applied)


def _judge(
    subject: Subject,
    options: Options,
    fold: Fold,
    differences: Differences,
    found: int,
    topic_id: str,
    step: int,
) -> int:
    """Note the keys that really differ under FOUND; returns how many could not be judged."""
    for _ in range(_ROUNDS):
        if not found:
            return 0
        at = subject.reached(topic_id)
        fold.to(at.touched)
        kept, left = step + 2, step + 4
        differences.unchanged(kept, step)
        differences.move(kept, FOUND)
        changed = differences.changed(left, step, kept)
        if not subject.key and options.against == "source":
            return changed
        if not changed or not _wait(subject, topic_id, at.touched, options.patience):
            return changed
        fold.to(subject.reached(topic_id).applied)
        step += 10
        found = differences.find_among(step, left)
    return found


def _drop_touched(differences: Differences, step: int, version: int) -> int:
    """Rows without a key that events have touched since the stream's position before the reading; returns how many.

    Whether the source's rows held such an event already is not known, so they cannot be judged.
    """
    return differences.drop(step, f"toUInt256OrZero(source_version) > toUInt256({literal(str(version))})")


def _wait(subject: Subject, topic_id: str, until: dict[int, int], patience: float) -> bool:
    """Wait until the stream has applied everything below these offsets; returns whether it has."""
    deadline = time.monotonic() + patience
    while True:
        at = subject.reached(topic_id).applied
        if all(at.get(partition, 0) >= offset for partition, offset in until.items()):
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)


def _chosen(subject: Subject, options: Options) -> tuple[Column, ...]:
    wanted = [*options.columns]
    unknown = [name for name in wanted if name not in {c.name for c in subject.columns}]
    if unknown:
        raise StreamFailed(
            f"{subject.table.qualified} has no column {unknown[0]!r} that the stream fills",
            hint=f"Its columns are {', '.join(c.name for c in subject.columns)}.",
        )
    names = {*wanted, *subject.key} if wanted else {c.name for c in subject.columns}
    return tuple(c for c in subject.columns if c.name in names)


def _within(subject: Subject, options: Options) -> str:
    low, end = options.bounds or (None, None)
    name = quote(subject.key[0]) if options.bounds is not None else ""
    limits = [f"{name} >= {low}"] if low is not None else []
    return " AND ".join([*limits, *([f"{name} < {end}"] if end is not None else [])])


def _ignores_deletes(subject: Subject) -> bool:
    """Whether rows that the source deleted stay in the table, as configured."""
    engine = subject.table.engine
    marked = engine.is_deleted_column or engine.sign_column or engine.family is Family.MERGE_TREE
    return subject.settings.policy.changes.deletes == "ignore" and not marked


def _expect_whole(fold: Fold, incomplete: bool) -> None:
    unresolved = fold.letters.kinds["unresolved"]
    if incomplete and unresolved:
        raise StreamFailed(
            f"the topic no longer holds the values that {counted(unresolved, 'record')} of it leave out",
            hint="Compare with the database instead: `ch_sink verify CONFIG --against source`.",
        )
