"""The target of a stream, prepared once: how its versions are laid out and what its engine requires."""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from ch_sink.errors import StreamFailed, TableError
from ch_sink.merge.resolved import Scope, System, version_column
from ch_sink.model.change import ChangeBatch, ReadAs
from ch_sink.model.counts import capitalized
from ch_sink.model.policy import Policy
from ch_sink.order import Layout, layout_for, strategy_for
from ch_sink.sources import STATED, Source
from ch_sink.table.checks import expect_key
from ch_sink.table.model import Family, TargetTable
from ch_sink.table.partition import partition_groups
from ch_sink.types.chtype import parse_type
from ch_sink.types.column import PLAIN, reading
from ch_sink.types.sql import columns_in, literal, quote


@dataclass(frozen=True, slots=True)
class Target:
    """A table with the choices of its stream. ``layout`` orders changes even if the table stores no version."""

    table: TargetTable
    policy: Policy
    layout: Layout
    system: System

    @staticmethod
    def of(table: TargetTable, policy: Policy) -> "Target":
        """Prepare a table.

        Raises:
            TableError: its version column holds no order, or it lacks a column that the user adds.
        """
        _expect_added(table, policy)
        name = version_column(table)
        column = table.column(name) if name else None
        layout = layout_for(column.type if column else "UInt128")
        return Target(table, policy, layout, System.of(table, layout if column else None))

    def stored_key(self, key: Sequence[str]) -> tuple[str, ...]:
        """The table's key columns for those of the source."""
        chosen = self.policy.columns
        return (*self.table.added_key(chosen), *(chosen.target(name) for name in key)) if key else ()

    @property
    def collapsing(self) -> bool:
        return self.table.engine.family.collapses

    @property
    def appends(self) -> bool:
        return self.table.engine.family is Family.MERGE_TREE

    @property
    def exclusive(self) -> bool:
        """Whether only one execution at a time may insert: rows are reconciled, or no version decides between them.

        Of rows with one time the one inserted last wins.
        """
        versioned = self.table.engine.family is Family.REPLACING and self.table.engine.version_column is not None
        return not versioned or self.layout.kind == "time"

    def top_version(self, rows: pa.Table) -> int:
        """The highest version of rows to insert; 0 if they have none, or one that is a time."""
        name = self.system.version
        if name is None or self.layout.kind == "time" or name not in rows.column_names or not rows.num_rows:
            return 0
        words = self.layout.from_arrow(rows.column(name))
        high = words[:, 0].max()
        return int(high) << 64 | int(words[words[:, 0] == high, 1].max())

    def places(self, key: tuple[str, ...]) -> tuple[str, ...]:
        """Source columns outside the key that decide the place of a row: its sorting key and partition."""
        mine = {c.name for c in self.table.source_columns}
        return tuple(sorted(self.table.deciding_columns(key) & mine))

    def expect_key(self, key: Sequence[str]) -> None:
        """Raises TableError if the table cannot keep rows of different keys apart. ``key``: the source's columns."""
        expect_key(self.table, self.stored_key(key))

    def expect_same_keys(self, so_far: ReadAs, now: Container[str], offset: int) -> None:
        """Raises StreamFailed if keys state other types than before, by which their values are read otherwise.

        ``so_far``: with those from the offset on; ``now``: the columns that these have.
        """
        for name, ways in so_far.items():
            column = self.table.column(self.policy.columns.target(name))
            if column is None or name not in now or len({reading(how, column) for how in ways}) == 1:
                continue
            *others, stated = [how for how in ways if how != PLAIN]
            hint = "let a new snapshot fill another table, under a new stream name with start: latest."
            if not others and not self.policy.columns.source:
                # With the comment, keys that do not state it are read by it too.
                own = column.comment.partition("debezium: ")[0]
                comment = f"{quote(column.name)} {literal(f'{own}debezium: {stated}')}"
                hint = (
                    f"if keys that state no type are {stated.partition(' {')[0].split()[-1]} too, state it for all: "
                    f"ALTER TABLE {self.table.qualified} COMMENT COLUMN {comment}, and fill the table again with "
                    f"`ch_sink resync CONFIG --against {'topic' if self.appends else 'source'} --apply`. Else {hint}"
                )
            shown = " and ".join("text or none" if how == PLAIN else how.partition(" {")[0] for how in ways)
            raise StreamFailed(
                f"the keys behind offset {offset}, or earlier ones, state another type of {name!r} ({shown}): it is "
                f"read as another value, and changes would not find the rows that {self.table.qualified} has",
                hint=capitalized(hint),
            )

    def expect_still_rows(self, key: tuple[str, ...]) -> None:
        """Raises StreamFailed if rows can leave their places where versions are times: those of one time tie."""
        moving = self.table.moves_by(key) if self.versions_are_times else frozenset()
        if moving:
            raise StreamFailed(
                f"{self.table.qualified} has times as versions, and {', '.join(sorted(moving))} outside the key "
                f"({', '.join(key)}) in its sorting or partition key: a row and the delete mark that it "
                "leaves behind have the same version, so neither is newer",
                hint="Recreate the table with a version column UInt128 (`ch_sink init`), or sort and partition it by "
                "columns of the key only.",
            )

    @property
    def versions_are_times(self) -> bool:
        """Whether rows of one key replace each other by the time of their change."""
        return self.table.engine.family is Family.REPLACING and self.layout.kind == "time"

    def _sharded_by(self, key: tuple[str, ...]) -> frozenset[str]:
        """The columns outside the key that decide on which server a row is."""
        named = columns_in(self.table.sharding_key or "tuple()", {c.name for c in self.table.columns})
        return self.table.deciding_columns(key, named)

    def _is_computed(self, name: str) -> bool:
        """Whether the server may compute the column from others of the row."""
        column = self.table.column(name)
        return column is not None and bool(columns_in(column.default_expression, {c.name for c in self.table.columns}))

    def wants_before(self, key: tuple[str, ...]) -> bool:
        """Whether before images are needed: in tables without keys only they say which row is meant."""
        return self.table.finds_by_all(key)

    def strategy(self, source: Source | None) -> str:
        """The version strategy in force for this source."""
        default = source.default_strategy if source is not None else "source_position"
        if default == "stated":
            return default
        if self.policy.events.tombstones == "delete":
            default = "kafka_offset"  # they state no position
        return strategy_for(self.policy.versions, default, self.layout)

    def follows(self, source: Source | None) -> bool:
        """Whether positions tell transactions and re-deliveries, though Kafka offsets order the changes.

        Both matter where keys can be swapped, and where each change is a row. Flattened events may state no positions.
        """
        if source is None or source.default_strategy != "source_position" or self.policy.events.tombstones == "delete":
            return False
        return (source.deferrable or self.appends) and self.strategy(source) == "kafka_offset"

    def tells_swaps(self, source: Source | None) -> bool:
        """Whether it is known which changes of this source belong to one transaction: only positions show it."""
        return self.follows(source) or self.strategy(source) == "source_position"

    def needs_stored_rows(self, key: tuple[str, ...], source: Source | None) -> bool:
        """Whether what a change stores may depend on the row that an earlier change of its key has stored."""
        return self._looks_up_all(key) or _omits(source)

    def _looks_up_all(self, key: tuple[str, ...]) -> bool:
        return self.collapsing or (not self.appends and bool(self.places(key)))

    def scope(self, batch: ChangeBatch, source: Source | None) -> Scope:
        """The scope in which this batch is resolved.

        Where a row is stored is asked of the table alone. An event says where the source had the row (its before image,
        or that it is new), and that may be elsewhere: a dead letter, a gap in the topic, a failover, an ignored
        truncate or another configuration may have come between.
        """
        key = tuple(batch.key.column_names) if batch.key is not None else ()
        places = () if self.appends else self.places(key)
        sharded_by = self._sharded_by(key)
        return Scope(
            places=places,
            sorting=tuple(name for name in places if name in self.table.sorting_key and not self._is_computed(name)),
            sharding=tuple(name for name in places if name in sharded_by),
            partitions=partial(partition_groups, self.table),
            omits_values=_omits(source),
            omits_long=source is not None and source.omits_long,
            deferrable=source is not None and source.deferrable and self.tells_swaps(source),
            lookup_all=self._looks_up_all(key),
            layout=self.layout,
            version_column=self.system.version,
            deleted=self.deleted,
            history=self.appends and self.layout.kind != "time" and self.system.version is not None,
            unique_versions=self.layout.kind != "time" and self.system.version is not None,
            upserts=self._nullable() if source is STATED else None,
        )

    def _nullable(self) -> frozenset[str]:
        return frozenset(c.name for c in self.table.source_columns if parse_type(c.type).nullable)

    @property
    def deleted(self) -> tuple[str, int] | None:
        """The column that marks a deleted row, and its value there; None where rows are not marked."""
        engine = self.table.engine
        if engine.family is Family.REPLACING:
            if engine.is_deleted_column:
                return engine.is_deleted_column, 1
            if engine.sign_column:
                return engine.sign_column, -1
        if engine.family is Family.MERGE_TREE and self.table.column("_sign") is not None:
            return "_sign", -1
        return None


def _omits(source: Source | None) -> bool:
    # Without unique change identities no values can be handed over; the stored row still fills omitted ones.
    return source is not None and source.omits_values and source.unique_inner


def _expect_added(table: TargetTable, policy: Policy) -> None:
    """Raises TableError if the table lacks an added column, or is not sorted by one that tells topics apart."""
    chosen = policy.columns
    for name, _ in chosen.add:
        column = table.column(name)
        if column is None or not column.insertable:
            raise TableError(
                f"{table.qualified} lacks the column {name!r} of columns.add",
                hint="Add it with `ch_sink init CONFIG --apply`.",
            )
        if name in table.system_columns:
            raise TableError(
                f"columns.add names {name!r}, a column of {table.qualified} that the sink writes itself",
                hint="Give the added column another name.",
            )
        if name in chosen.source and name not in table.sorting_key and table.engine.family is not Family.MERGE_TREE:
            raise TableError(
                f"{table.qualified} takes the rows of several topics (merge: true), but is not sorted by {name!r}: the "
                "engine would merge rows of different topics",
                hint=f"Recreate the table with {name!r} in ORDER BY; `ch_sink init` creates it that way.",
            )
