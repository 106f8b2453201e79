"""A table beside the target that is filled and then takes its place, in one step for readers.

Its name tells whose it is, so that the next run finds what a killed one left. Views, row policies and grants name the
target, not what is behind the name: they hold for the successor from the moment of the exchange.
"""

import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ch_sink.clickhouse import EVERY_TYPE, Client, detect
from ch_sink.errors import ChSinkError, ClickHouseError, StreamFailed
from ch_sink.model.policy import Policy
from ch_sink.stream.rollback import fill_note
from ch_sink.table.engine_full import EngineClause, parse_engine
from ch_sink.table.model import TargetTable
from ch_sink.trust.shadow import DROP
from ch_sink.trust.shape import Shape
from ch_sink.types.sql import literal, quote, string_value

SUFFIX = "__ch_sink_next"
_DRAFT = "_columns"
"""Ends the name of a table without rows in which the columns of another shape are prepared."""
_NOT_IMPLEMENTED, _UNKNOWN_TABLE = 48, 60
_ALLOW: dict[str, str | int] = {**EVERY_TYPE, "allow_nullable_key": 1}
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Successor:
    """The successor of one target table. Methods raise ClickHouseError."""

    client: Client
    target: TargetTable
    policy: Policy
    notes: str = ""
    """Qualified name of the table in which ``init`` notes source types."""
    cluster: str | None = None

    @property
    def qualified(self) -> str:
        return f"{quote(self.target.database)}.{quote(self.target.name + SUFFIX)}"

    @property
    def _draft(self) -> str:
        return f"{quote(self.target.database)}.{quote(self.target.name + SUFFIX + _DRAFT)}"

    @property
    def clause(self) -> EngineClause:
        """The target's engine clause."""
        found = self._described()
        return parse_engine(str(found["engine"]), str(found["engine_full"]))

    @property
    def _on_cluster(self) -> str:
        return f" ON CLUSTER {quote(self.cluster)}" if self.cluster else ""

    def expect_possible(self) -> None:
        """Raises StreamFailed if the target cannot be replaced by another table without loss."""
        target = self.target
        self._expect_one_exchange()
        if target.distributed:
            raise StreamFailed(
                f"{target.qualified} is Distributed: its rows are on several servers",
                hint="Empty it and let a new snapshot fill it, or name the local table as clickhouse.table.",
            )
        found = self._described()
        views = [f"{d}.{t}" for d, t in zip(*(found[k] for k in _DEPENDENT), strict=True)]
        seen = self.client.rows(
            "SELECT concat(database, '.', name) AS view, engine FROM system.tables "
            "WHERE concat(database, '.', name) IN {views:Array(String)}",
            {"views": views},
            doing=f"look for views over {target.qualified}",
        )
        # Of a view in a database that the user may not see there is nothing but the name.
        harmless = {str(row["view"]) for row in seen if row["engine"] != "MaterializedView"}
        fed = [view for view in views if view not in harmless]
        if fed:
            raise StreamFailed(
                f"{target.qualified} feeds the materialized view {fed[0]}, which would "
                "see neither the loaded rows nor the removal of others",
                hint="Drop the view and create it again afterwards; or use `ch_sink repair`, which writes differences.",
            )

    def size(self) -> int:
        """Bytes of the target on disk, 0 if the server does not say."""
        return int(self._described()["total_bytes"] or 0)

    def _expect_one_exchange(self) -> None:
        """Raises StreamFailed if the names would be exchanged on one replica only, which then has another table."""
        replicas = 1 if self.cluster else self.client.total_replicas(self.target)
        if replicas == 1:
            return
        [found] = self.client.rows(
            "SELECT engine FROM system.databases WHERE name = {database:String}",
            {"database": self.target.database},
            doing=f"inspect database {self.target.database}",
        )
        # This one carries out every statement on all of its replicas.
        if found["engine"] != "Replicated":
            raise StreamFailed(
                f"{self.target.qualified} has {replicas} replicas, and clickhouse.cluster is not set: the tables would "
                "be exchanged on one server only",
                hint="Set clickhouse.cluster to the cluster of its replicas "
                "(SELECT DISTINCT cluster FROM system.clusters).",
            )

    def comment(self) -> str:
        """The target's comment."""
        return str(self._described()["comment"])

    @property
    def left(self) -> bool:
        """Whether an earlier run left it."""
        return bool(self._rows(self.target.name + SUFFIX))

    def clear(self, say: Say) -> None:
        """Drop what an earlier run left."""
        if self.left:
            say(f"dropping {self.qualified}, which an earlier run left")
        self.drop()

    def create(self, shape: Shape | None = None) -> TargetTable:
        """Create it, empty, in the target's shape or another one."""
        if shape is None:
            found = self._described()
            self._create(
                self.qualified, self.target.qualified, _engine(str(found["engine"]), str(found["engine_full"]))
            )
            return self.found()
        # Engine and sorting key may name columns that the target lacks.
        self._create(self._draft, self.target.qualified, "MergeTree PARTITION BY tuple() ORDER BY tuple()")
        for action in shape.actions:
            sql = f"ALTER TABLE {self._draft}{self._on_cluster} {action}"
            try:
                self.client.command(sql, settings={"alter_sync": 2}, doing=f"shape {self.qualified}")
            except ClickHouseError as error:
                if not re.search("index|projection|constraint", error.message, re.IGNORECASE):
                    raise
                raise StreamFailed(
                    f"{self.target.qualified} cannot get its new shape: {error.message}",
                    hint="Drop the indexes, projections and constraints that name the column (ALTER TABLE … DROP INDEX "
                    "…), run the command again, and add them to the new table.",
                ) from None
        self._create(self.qualified, self._draft, _engine(shape.engine.partition("(")[0].split()[0], shape.engine))
        self._drop(self._draft)
        return self.found(shape)

    def _create(self, name: str, like: str, engine: str) -> None:
        sql = f"CREATE TABLE {name}{self._on_cluster} AS {like} ENGINE = {engine} COMMENT {literal(fill_note({}))}"
        self.client.command(sql, settings=_ALLOW, again=False, doing=f"create {name}")

    def found(self, shape: Shape | None = None) -> TargetTable:
        """The table that has its name now, of the target's shape or this one."""
        own = detect(self.client, self.target.database, self.target.name + SUFFIX, self.policy)
        # What the target's columns mean is noted under its own name.
        notes = {c.name: c.note for c in (shape.table if shape is not None else self.target).columns}
        return replace(own, columns=tuple(replace(c, note=notes.get(c.name, "")) for c in own.columns))

    def note(self, noted: Mapping[str, Any]) -> None:
        """Say in its comment what a run has to do once it is in place, in case this one cannot."""
        self._comment(self.qualified, fill_note(noted))

    def unmark(self, name: str, comment: str) -> None:
        """Give this table a comment of the user's again."""
        self._comment(name, comment)

    def take_place(self, say: Say) -> None:
        """Exchange the names: readers see either table, whole. The former one then has the successor's name."""
        target = self.target.qualified
        self._renote()
        try:
            self.client.command(
                f"EXCHANGE TABLES {target} AND {self.qualified}{self._on_cluster}",
                again=False,
                doing=f"put {self.qualified} in place",
            )
        except ClickHouseError as error:
            if error.code != _NOT_IMPLEMENTED:
                raise
            say(f"the database of {target} cannot exchange tables; renaming them in one statement")
            former = f"{quote(self.target.database)}.{quote(self.target.name + '__ch_sink_former')}"
            self.client.command(
                f"RENAME TABLE {target} TO {former}, {self.qualified} TO {target}, {former} TO {self.qualified}"
                f"{self._on_cluster}",
                again=False,
                doing=f"put {self.qualified} in place",
            )

    def show(self, statements: Iterable[str]) -> None:
        """Carry out what follows the exchange, such as another view; all of it may be repeated."""
        for sql in statements:
            try:
                self.client.command(sql, doing=f"show {self.target.qualified} in its new shape")
            except ClickHouseError as error:
                # Who has made the table by hand may lack the one in which source types are noted.
                if error.code != _UNKNOWN_TABLE or not sql.startswith("INSERT"):
                    raise

    def drop(self) -> None:
        """Drop the table that has its name now, and the draft of its columns."""
        self._drop(self._draft)
        self._drop(self.qualified)

    def _drop(self, name: str) -> None:
        self.client.command(f"DROP TABLE IF EXISTS {name}{self._on_cluster} SYNC", settings=DROP, doing=f"drop {name}")

    def dropped(self, say: Say) -> None:
        """Drop the former table; one that a server does not let go is named."""
        try:
            self.drop()
        except ChSinkError as error:
            say(f"the old rows are still in {self.qualified}, drop it by hand: {error}")

    def _renote(self) -> None:
        """The notes of column types are those of a table's id: the successor gets its own."""
        rows = ", ".join(f"({literal(c.name)}, {literal(c.note)})" for c in self.target.columns if c.note)
        if not self.notes or not rows:
            return
        own = f"database = {literal(self.target.database)} AND name = {literal(self.target.name + SUFFIX)}"
        self.client.command(
            f"INSERT INTO {self.notes} (database, table, column, type, uuid) SELECT made.database, "
            f"{literal(self.target.name)}, noted.column, noted.type, made.uuid FROM "
            f"values('column String, type String', {rows}) AS noted, system.tables AS made WHERE {own}",
            doing=f"note the column types of {self.target.qualified}",
        )

    def _comment(self, name: str, text: str) -> None:
        sql = f"ALTER TABLE {name}{self._on_cluster} MODIFY COMMENT {literal(text)}"
        self.client.command(sql, settings={"alter_sync": 2}, doing=f"comment {name}")

    def _described(self) -> dict[str, Any]:
        [found] = self._rows(self.target.name)
        return found

    def _rows(self, name: str) -> list[dict[str, Any]]:
        return self.client.rows(
            f"SELECT engine, engine_full, comment, total_bytes, {', '.join(_DEPENDENT)} FROM system.tables "
            "WHERE database = {database:String} AND name = {name:String}",
            {"database": self.target.database, "name": name},
            doing=f"look at {self.target.database}.{name}",
        )


_DEPENDENT = ("dependencies_database", "dependencies_table")


def _engine(engine: str, full: str) -> str:
    """The engine clause for a second table; a replicated one needs a path of its own in the keeper."""
    arguments = parse_engine(engine, full).arguments
    path = string_value(arguments[0]) if engine.startswith("Replicated") and arguments else None
    if path is None or "{uuid}" in path:
        return full
    return full.replace(arguments[0], literal(f"{path.rstrip('/')}_{uuid.uuid4().hex[:8]}"), 1)
