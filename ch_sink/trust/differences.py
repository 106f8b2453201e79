"""Two tables of one shape compared inside ClickHouse: checksums of buckets first, rows only where those differ."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ch_sink.clickhouse import EVERY_TYPE, Client
from ch_sink.table.model import TargetTable
from ch_sink.trust.sides import KEY, ROW, TIMES, VERSION, Side, hashed
from ch_sink.types.chtype import parse_type
from ch_sink.types.column import Column
from ch_sink.types.sql import OWN, literal, quote

_SETTINGS: dict[str, str | int] = {
    **EVERY_TYPE,
    # Large tables are grouped on disk rather than in memory.
    "max_bytes_before_external_group_by": 1 << 30,
    "max_bytes_before_external_sort": 1 << 30,
    "join_use_nulls": 0,
    "output_format_json_quote_64bit_integers": 0,
    "output_format_json_quote_decimals": 1,
    "output_format_json_quote_denormals": 1,
}
_EACH = f"{OWN}each"
"""The hash of each compared value."""
_ROWS_PER_BUCKET = 5_000
_MOST_BUCKETS = 65_536
_SAMPLES = 1_000_000
"""Parts of the key space that a sample is taken from."""


@dataclass(frozen=True, slots=True)
class Totals:
    """The result of comparing checksums."""

    table_rows: int
    buckets: int
    different: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """One row that differs, with both values of each column that does."""

    kind: str
    key: dict[str, Any]
    columns: dict[str, tuple[Any, Any]]
    """Column → value of the source, value of the table. All columns of a row that one of them lacks."""


class Differences:
    """The table of differences between a shadow and a target, filled in steps.

    A *step* is a set of keys: those found by one comparison, or those left of it.
    """

    def __init__(
        self, client: Client, name: str, source: Side, target: Side, share: float = 1.0, condition: str = ""
    ) -> None:
        """Set up a comparison; nothing is read yet.

        Args:
            share: the part of the key space that is compared.
            condition: SQL over the columns; keys are compared whose row meets it on one side or on both.
        """
        self._client, self._name, self.source, self.target = client, name, source, target
        self._share, self._condition = share, condition

        self._steps = 0

    def new(self) -> int:
        """The number of a new step."""
        self._steps += 2  # each has one beside it for keys whose versions are not looked up yet
        return self._steps

    def totals(self) -> Totals:
        """Compare the checksums of all buckets."""
        many = self._number(f"SELECT count() AS n FROM {self.target.table.qualified}", of=self.target.table)
        buckets = min(_MOST_BUCKETS, max(16, many // _ROWS_PER_BUCKET))
        found = self._client.rows(
            f"SELECT sipHash64({KEY}) % {buckets} AS bucket, "
            f"sumIf({TIMES}, side = 1 AND {TIMES} > 0) AS table_rows, {self._differ()} AS differs "
            f"FROM ({self._both()}) {self._sampled()} GROUP BY bucket",
            settings=_SETTINGS,
            of=self.target.table,
            doing=f"compare {self.target.table.qualified}",
        )
        return Totals(
            sum(int(r["table_rows"]) for r in found),
            buckets,
            tuple(int(r["bucket"]) for r in found if r["differs"]),
        )

    def find(self, step: int, totals: Totals) -> int:
        """Note the keys that differ in the buckets that do; returns their number."""
        if not totals.different:
            return 0
        listed = ", ".join(str(bucket) for bucket in totals.different)
        some = f"sipHash64({KEY}) % {totals.buckets} IN ({listed})" if len(totals.different) < totals.buckets else ""
        return self._note(step, f"({self._both()}) {self._sampled(some)}")

    def find_among(self, step: int, earlier: int) -> int:
        """Compare the keys of an earlier step once more."""
        return self._note(step, f"({self._both(self.keys(earlier))})")

    def unchanged(self, step: int, earlier: int) -> int:
        """Keep the keys of an earlier step whose source row is still of the version that was compared."""
        now = self.source.versions(self.keys(earlier))
        self._run(
            f"INSERT INTO {self._name} SELECT {step}, d.{KEY}, d.kind, d.source_times, d.table_times, "
            f"d.source_version, d.table_version FROM (SELECT * FROM {self._name} WHERE step = {earlier}) AS d "
            f"LEFT JOIN ({now}) AS now ON d.{KEY} = now.{KEY} WHERE d.source_version = now.{VERSION}"
        )
        return self.count(step)

    def changed(self, step: int, earlier: int, kept: int) -> int:
        """The keys of an earlier step that were not kept."""
        self._run(
            f"INSERT INTO {self._name} SELECT {step}, {KEY}, kind, source_times, table_times, source_version, "
            f"table_version FROM {self._name} WHERE step = {earlier} AND {KEY} NOT IN ({self.keys(kept)})"
        )
        return self.count(step)

    def move(self, earlier: int, step: int) -> None:
        """Add the keys of a step to another."""
        self._run(
            f"INSERT INTO {self._name} SELECT {step}, {KEY}, kind, source_times, table_times, source_version, "
            f"table_version FROM {self._name} WHERE step = {earlier}"
        )

    def drop(self, step: int, condition: str) -> int:
        """Take keys out of a step; returns how many."""
        gone = self.count(step, condition)
        if gone:
            self._run(f"DELETE FROM {self._name} WHERE step = {step} AND ({condition})")
        return gone

    def several(self, step: int) -> None:
        """Call rows different that the table has more than once: as extra ones, all of them would go."""
        some = f"step = {step} AND kind = 'extra' AND source_times > 0"
        if self.count(step, some):
            self._run(
                f"INSERT INTO {self._name} SELECT step, {KEY}, 'different', source_times, table_times, source_version, "
                f"table_version FROM {self._name} WHERE {some}"
            )
            self.drop(step, some)

    def count(self, step: int, condition: str = "1") -> int:
        """How many keys a step has."""
        return self._number(f"SELECT count() AS n FROM {self._name} WHERE step = {step} AND ({condition})")

    def kinds(self, step: int) -> dict[str, int]:
        """Rows by kind: missing, extra, different."""
        found = self._client.rows(
            f"SELECT kind, sum(if(kind = 'different', 1, greatest(abs(source_times - table_times), 1))) AS n "
            f"FROM {self._name} WHERE step = {step} GROUP BY kind",
            settings=_SETTINGS,
        )
        return {str(row["kind"]): int(row["n"]) for row in found}

    def keys(self, step: int, kinds: Sequence[str] = ()) -> str:
        """SQL that gives the key hashes of a step."""
        of = f" AND kind IN ({', '.join(literal(kind) for kind in kinds)})" if kinds else ""
        return f"SELECT {KEY} FROM {self._name} WHERE step = {step}{of}"

    def rows(self, step: int) -> str:
        """SQL that gives the differences of a step."""
        return f"SELECT * FROM {self._name} WHERE step = {step}"

    def columns(self, step: int) -> dict[str, int]:
        """Column → number of rows in which it differs."""
        each = f"{self._each_hash()} AS {_EACH}"
        both = " UNION ALL ".join(
            f"SELECT {KEY}, {side} AS side, {_EACH} FROM ({one.live([each], self.keys(step, ['different']))})"
            for side, one in ((0, self.source), (1, self.target))
        )
        # One of both rows may have gone meanwhile.
        found = self._client.rows(
            f"SELECT sumForEach(arrayMap((a, b) -> a != b, source, target)) AS n FROM (SELECT anyIf({_EACH}, side = 0) "
            f"AS source, anyIf({_EACH}, side = 1) AS target FROM ({both}) GROUP BY {KEY} HAVING uniqExact(side) = 2)",
            settings=_SETTINGS,
            of=self.target.table,
        )
        counts = found[0]["n"] if found else []
        return {c.name: int(n) for c, n in zip(self.source.columns, counts, strict=False) if n}

    def examples(self, step: int, limit: int) -> list[Difference]:
        """Some of the rows, of each kind in turn."""
        found: dict[bytes, str] = {}
        for row in self._client.rows(
            f"SELECT hex({KEY}) AS key, kind FROM {self._name} WHERE step = {step} ORDER BY {KEY} "
            f"LIMIT {limit} BY kind LIMIT {3 * limit}",
            settings=_SETTINGS,
        ):
            found[row["key"]] = str(row["kind"])
        chosen = _fair(found, limit)
        if not chosen:
            return []
        wanted = ", ".join(f"unhex('{key}')" for key in chosen)
        among = f"SELECT toFixedString(arrayJoin([{wanted}]), 16)"
        source, table = self._values(self.source, among), self._values(self.target, among)
        # A row may have gone meanwhile.
        there = [key for key in chosen if key in source or key in table]
        return [self._difference(found[key], source.get(key), table.get(key)) for key in there]

    def shown(self, column: Column, expression: str) -> Any:
        """The value of an SQL expression in a column, in the form in which examples have it."""
        value = f"CAST({expression} AS {column.type}) AS {quote(column.name)}"
        [found] = self._client.rows(f"WITH {value} SELECT {_as_json(column)} AS shown", settings=_SETTINGS)
        return _value(found["shown"])

    def _values(self, side: Side, among: str) -> dict[Any, tuple[dict[str, Any], list[Any]]]:
        columns = self._shown()
        shown = [f"{_as_json(c)} AS {OWN}{i}" for i, c in enumerate(columns)]
        rows = self._client.rows(
            f"SELECT hex({KEY}) AS id, * FROM ({side.live([*shown, f'{self._each_hash()} AS {_EACH}'], among)})",
            settings=_SETTINGS,
            of=side.table,
        )
        return {
            row["id"]: ({c.name: _value(row[f"{OWN}{i}"]) for i, c in enumerate(columns)}, list(row[_EACH]))
            for row in rows
        }

    def _shown(self) -> list[Column]:
        named = [c for c in self.target.table.columns if c.name in self.target.key]
        return [*named, *(c for c in self.source.columns if c.name not in self.target.key)]

    def _difference(
        self, kind: str, source: tuple[dict[str, Any], list[Any]] | None, table: tuple[dict[str, Any], list[Any]] | None
    ) -> Difference:
        known = (source or table or ({}, []))[0]
        key = {name: known.get(name) for name in self.target.key or [c.name for c in self.source.columns]}
        names = [c.name for c in self.source.columns]
        if source is not None and table is not None and kind == "different":
            names = [n for n, a, b in zip(names, source[1], table[1], strict=True) if a != b]
        else:
            names = [n for n in names if n not in self.target.key]
        left, right = (side[0] if side is not None else {} for side in (source, table))
        return Difference(kind, key, {n: (left.get(n), right.get(n)) for n in names})

    def _note(self, step: int, rows: str) -> int:
        """Note the keys of these rows that differ, then their versions."""
        raw = step + 1
        kind = (
            "multiIf(in_source != 0 AND in_table != 0 AND hashes > 1, 'different', "
            "in_source > in_table, 'missing', 'extra')"
        )
        self._run(
            f"INSERT INTO {self._name} SELECT {raw}, {KEY}, {kind}, in_source, in_table, '', '' FROM ("
            f"SELECT {KEY}, sumIf({TIMES}, side = 0) AS in_source, sumIf({TIMES}, side = 1) AS in_table, "
            f"uniqExact({ROW}) AS hashes, {self._differ()} AS differs FROM {rows} GROUP BY {KEY}) WHERE differs",
            of=self.target.table,
        )
        if not self.count(raw):
            return 0
        newest = [
            f"LEFT JOIN ({side.versions(self.keys(raw))}) AS {name} ON d.{KEY} = {name}.{KEY}"
            for name, side in (("s", self.source), ("t", self.target))
        ]
        self._run(
            f"INSERT INTO {self._name} SELECT {step}, d.{KEY}, d.kind, d.source_times, d.table_times, s.{VERSION}, "
            f"t.{VERSION} FROM (SELECT * FROM {self._name} WHERE step = {raw}) AS d {' '.join(newest)}",
            of=self.target.table,
        )
        return self.count(step)

    def _both(self, among: str = "") -> str:
        """The rows of both sides: 0 the source, 1 the table."""
        if self._condition and not among:
            sides = (self.source, self.target)
            among = " UNION ALL ".join(f"SELECT {KEY} FROM ({one.live(condition=self._condition)})" for one in sides)
        return " UNION ALL ".join(
            f"SELECT {KEY}, {ROW}, {TIMES}, {side} AS side FROM ({one.live(among=among)})"
            for side, one in ((0, self.source), (1, self.target))
        )

    @staticmethod
    def _differ() -> str:
        """Whether both sides of a group differ: in the number of rows, or in the sum of their hashes.

        So do rows without a key of which the table has some with more deletes than inserts, and some with fewer: they
        are equal in what is compared only, and readers see those.
        """
        return (
            f"(minIf({TIMES}, side = 1) < 0 AND maxIf({TIMES}, side = 1) > 0) OR "
            f"(sumIf({TIMES}, side = 0) != sumIf({TIMES}, side = 1)) OR "
            f"(sumIf({ROW} * toUInt64({TIMES}), side = 0) != sumIf({ROW} * toUInt64({TIMES}), side = 1))"
        )

    def _sampled(self, some: str = "") -> str:
        wanted = [some] if some else []
        if self._share < 1:
            wanted.append(f"sipHash64(2, {KEY}) % {_SAMPLES} < {round(self._share * _SAMPLES)}")
        return f"WHERE {' AND '.join(wanted)}" if wanted else ""

    def _each_hash(self) -> str:
        return "[" + ", ".join(f"sipHash64(1, {hashed(c)})" for c in self.source.columns) + "]"

    def _number(self, sql: str, of: TargetTable | None = None) -> int:
        found = self._client.rows(sql, settings=_SETTINGS, of=of)
        return int(found[0]["n"]) if found else 0

    def _run(self, sql: str, of: TargetTable | None = None) -> None:
        self._client.command(
            sql,
            settings=_SETTINGS,
            of=of,
            again=False,
            doing=f"compare {self.target.table.qualified} with its source",
        )


def _fair(kinds: dict[Any, str], limit: int) -> list[Any]:
    """Up to ``limit`` keys, of each kind in turn."""
    piles = [[key for key, kind in kinds.items() if kind == wanted] for wanted in ("different", "missing", "extra")]
    chosen: list[Any] = []
    for place in range(limit):
        chosen += [pile[place] for pile in piles if place < len(pile)]
    return chosen[:limit]


def _as_json(column: Column) -> str:
    """Bytes that are not text as ``{"hex": "00ff"}``, which `--key` takes, too."""
    name, json = quote(column.name), f"toJSONString({quote(column.name)})"
    if parse_type(column.type).bare.name not in ("String", "FixedString"):
        return f"toValidUTF8({json})"
    return f"if(isValidUTF8({name}), {json}, concat('{{\"hex\":\"', lower(hex({name})), '\"}}'))"


def _value(text: str | None) -> Any:
    """A value as JSON gives it; text that is not JSON as it is."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text
