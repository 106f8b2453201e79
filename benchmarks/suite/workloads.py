"""The workloads of the suite."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.suite.changes import Mix
from benchmarks.suite.rows import ORDERS, PADDED, WIDE, Field, RowKind

__all__ = ["QUICK", "WORKLOADS", "Workload"]

_ENGINES = {
    "replacing": ("`_version` UInt128, `_is_deleted` UInt8", "ReplacingMergeTree(_version, _is_deleted)"),
    "collapsing": ("`_sign` Int8", "CollapsingMergeTree(_sign)"),
    "versioned": ("`_version` UInt128, `_sign` Int8", "VersionedCollapsingMergeTree(_sign, _version)"),
    "append": ("", "MergeTree"),
}
_DOCUMENT = RowKind(
    (Field("_id", "String", "string"), Field("document", "Nullable(String)", "string", optional=True)),
    ("_id",),
    ORDERS.make,
)


@dataclass(frozen=True, slots=True)
class Workload:
    """A topic, the table it goes into, and the stream's settings."""

    name: str
    form: str = "json"
    rows: RowKind = ORDERS
    mix: Mix = field(default_factory=Mix)
    engine: str = "replacing"
    table: RowKind | None = None
    """The table's columns where they are not the rows' own."""
    partition_by: str = ""
    share: float = 1.0
    """Of the suite's number of events: less for long ones."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    stored: int = 0
    """Rows that the table has before, of keys that change."""

    def create(self, database: str, table: str) -> str:
        """The statement that makes the table."""
        more, engine = _ENGINES[self.engine]
        target = self.table or self.rows
        columns = ", ".join(filter(None, (target.columns, more)))
        by = f"PARTITION BY {self.partition_by} " if self.partition_by else ""
        order = ", ".join(target.key) if self.engine != "append" else ""
        return (
            f"CREATE TABLE {database}.{table} ({columns}) ENGINE = {engine} {by}ORDER BY ({order}) "
            "SETTINGS non_replicated_deduplication_window = 10000"
        )

    def fill(self, database: str, table: str) -> str:
        """The statement that puts rows into the table which a snapshot has stored before; empty for none."""
        if not self.stored:
            return ""
        value = "concat('a value of ordinary length, stored before: ', toString(number))"
        values = {f.name: value for f in self.rows.fields if "String" in f.clickhouse and "Low" not in f.clickhouse}
        values |= dict.fromkeys(self.rows.key, "number") | (
            {"_sign": "1"} if "sign" in _ENGINES[self.engine][0] else {}
        )
        return (
            f"INSERT INTO {database}.{table} ({', '.join(values)}) "
            f"SELECT {', '.join(values.values())} FROM numbers({self.stored})"
        )


WORKLOADS: Mapping[str, Workload] = {
    one.name: one
    for one in (
        Workload("json"),
        Workload("json with schema", form="json with schema", share=0.4),
        Workload("avro", form="avro"),
        Workload("flattened", form="flattened"),
        Workload("sysbench rows", rows=PADDED),
        Workload("wide rows", rows=WIDE, share=0.2),
        Workload("snapshot only", mix=Mix(snapshot=100)),
        Workload("hot keys", mix=Mix(snapshot=5, updates=90, deletes=0, hot=True)),
        Workload("deletes", mix=Mix(snapshot=20, updates=0, deletes=49)),
        Workload("1 % key changes", mix=Mix(key_changes=1)),
        Workload("PostgreSQL", form="postgres"),
        Workload("PostgreSQL, 5 % placeholders", form="postgres", mix=Mix(placeholders=14)),
        Workload("200 partitions", partition_by="id % 200"),
        Workload("documents", form="documents", table=_DOCUMENT),
        Workload("collapsing", engine="collapsing"),
        Workload("collapsing, 1 M rows", engine="collapsing", stored=1_000_000),
        Workload("versioned collapsing", engine="versioned"),
        Workload("append", engine="append"),
    )
}
QUICK = ("json", "json with schema", "avro", "collapsing")
"""What ``make bench`` runs."""
