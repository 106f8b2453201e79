"""Rollups: sums, counts and averages beside a table that stores differences, each kept right by the same differences.

A rollup is an ``AggregatingMergeTree`` of sums. A row that comes adds its values, a row that goes takes them away, so
every statement here is one over rows with a sign: those of a chunk, of the table, or of its view with a sign of 1.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from ch_sink.errors import TableError
from ch_sink.model.policy import ColumnPolicy
from ch_sink.table.model import Family, TargetTable
from ch_sink.table.templates import render
from ch_sink.table.varying import calls, varies
from ch_sink.types.chtype import parse_type
from ch_sink.types.lexer import columns_in, tokenize
from ch_sink.types.sql import OWN, literal, quote

__all__ = ["Rollup", "RollupChoice", "described", "expect_rollups", "probe", "rollup_of"]

_SIGN = f"{OWN}sign"
_COMMENT = "Rollup of {} by ch_sink"
_ROWS = "_rows"
_BESIDE = re.compile(
    r"dict\w+|joinGet\w*|(row|block)Number\w*|running\w+|neighbor|nonNegativeDerivative|(host|user|fqdn|fullHost)(Name)?|"
    r"current\w+|serverU+ID|uptime|version|buildId|get(Setting|Macro|ServerSetting)\w*|timezone|serverTimezone|query_?id",
    re.IGNORECASE,
)
"""Functions whose value depends on more than the row: other tables, the server, the block, the user."""


@dataclass(frozen=True, slots=True)
class RollupChoice:
    """A rollup as the configuration states it. Expressions are ClickHouse SQL over the table's columns."""

    name: str
    by: tuple[tuple[str, str], ...]
    """Column of the rollup, expression."""
    sums: tuple[tuple[str, str], ...] = ()
    avgs: tuple[tuple[str, str], ...] = ()
    count: str = ""
    """Column that counts rows, empty for none."""
    where: str = ""
    allow_float: bool = False

    @property
    def values(self) -> tuple[tuple[str, str], ...]:
        """The columns of sums, then those of averages, with their expressions."""
        return (*self.sums, *self.avgs)

    @property
    def expressions(self) -> tuple[tuple[str, str], ...]:
        """Every expression, with the key that states it."""
        by = [(f"by.{name}", text) for name, text in self.by]
        sums = [(f"sum.{name}", text) for name, text in self.sums]
        avgs = [(f"avg.{name}", text) for name, text in self.avgs]
        return (*by, *sums, *avgs, *([("where", self.where)] if self.where else []))


@dataclass(frozen=True, slots=True)
class Rollup:
    """A rollup of one table, with the types that the server gives its expressions."""

    choice: RollupChoice
    database: str
    table: str
    """The qualified name of the table that it sums up."""
    sign: str
    """The table's sign column."""
    by: tuple[str, ...]
    """Types of the columns of ``by``."""
    sums: tuple[tuple[str, bool], ...]
    """Of each sum and average: the widest type of its kind, and whether the expression may be null."""
    used: tuple[str, ...]
    """Columns of the table that the expressions name."""
    dedup_window: int = 0

    @property
    def qualified(self) -> str:
        return f"{quote(self.database)}.{quote(self.choice.name)}"

    @property
    def view(self) -> str:
        """Name of the view that readers use."""
        return f"{self.choice.name}_current"

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """Name and type of every stored column, those of ``by`` first."""
        keys = [(name, kind) for (name, _), kind in zip(self.choice.by, self.by, strict=True)]
        sums = [(name, _summed(kind)) for name, _, kind, _ in self._stored]
        return (*keys, *sums)

    @property
    def _stored(self) -> list[tuple[str, str, str, str]]:
        """Stored sums: name, aggregated SQL, type, and the column of the choice that it belongs to."""
        found = []
        for place, ((name, _), (kind, nullable)) in enumerate(zip(self.choice.values, self.sums, strict=True)):
            value, average = f"{OWN}v{place}", place >= len(self.choice.sums)
            zero = f"CAST(0, {literal(kind)})"
            wide = f"ifNull(CAST({value}, {literal(f'Nullable({kind})')}), {zero})"
            found.append((f"_sum_{name}" if average else name, f"if({_SIGN} > 0, {wide}, -{wide})", kind, name))
            if average or nullable:  # a null is neither summed nor counted, and a sum of nothing is null
                found.append((f"_count_{name}", f"if(isNull({value}), 0, toInt64({_SIGN}))", "Int64", name))
        return [*found, (_ROWS, f"toInt64({_SIGN})", "Int64", "")]

    def sums_of(self, rows: str, sign: str) -> str:
        """The SELECT of the rollup's columns, one row for each group.

        Args:
            rows: SQL of the rows after FROM, with the table's columns under their names, in their types.
            sign: SQL of a row's sign.
        """
        choice = self.choice
        keys = [f"{OWN}k{place}" for place in range(len(choice.by))]
        inner = [f"({text}) AS {key}" for key, (_, text) in zip(keys, choice.by, strict=True)]
        inner += [f"({text}) AS {OWN}v{place}" for place, (_, text) in enumerate(choice.values)]
        shown = [f"{key} AS {quote(name)}" for key, (name, _) in zip(keys, choice.by, strict=True)]
        shown += [f"sum({value}) AS {quote(name)}" for name, value, _, _ in self._stored]
        where = f" WHERE ({choice.where})" if choice.where else ""
        return (
            f"SELECT {', '.join(shown)} FROM (SELECT {', '.join([*inner, f'{sign} AS {_SIGN}'])} FROM {rows}{where}) "
            f"GROUP BY {', '.join(keys)}"
        )

    @property
    def definition(self) -> str:
        """A digest of what the rollup holds: another one if its rows have to be computed again."""
        text = repr((self.columns, self.sums_of("t", self.sign), self.table))
        return blake2b(text.encode(), digest_size=8).hexdigest()

    @property
    def owned(self) -> str:
        """How the comment of the rollup's table begins, whatever its definition."""
        return _COMMENT.format(self.table.replace("`", ""))

    @property
    def comment(self) -> str:
        """The comment of the rollup's table once it is filled."""
        return f"{self.owned}, filled as {self.definition}"

    def create(self, *, rows: str = "", on_cluster: str = "") -> str:
        """The statement that creates the rollup's table, empty and to be filled, or replaces it by one that is filled.

        ``rows``: the SELECT that fills it.
        """
        nullable = ", allow_nullable_key = 1" if any(parse_type(kind).nullable for kind in self.by) else ""
        return render(
            "rollup",
            create="CREATE OR REPLACE TABLE" if rows else "CREATE TABLE IF NOT EXISTS",
            rollup=self.qualified,
            on_cluster=on_cluster,
            columns=",\n".join(f"    {quote(name)} {kind}" for name, kind in self.columns),
            order=", ".join(quote(name) for name, _ in self.choice.by),
            settings=f"non_replicated_deduplication_window = {self.dedup_window}{nullable}",
            comment=literal(self.comment if rows else f"{self.owned}, to be filled"),
            filling=f"AS {rows}" if rows else "",
        )

    def fill(self, condition: str) -> str:
        """The statement that replaces the rollup's table by one that is computed from the table.

        ``condition``: of the fence, without which it fails.
        """
        alive = f"(SELECT * FROM {self.table} WHERE throwIf(NOT ({condition}), 'superseded') = 0)"
        return self.create(rows=self.sums_of(alive if condition else self.table, quote(self.sign)))

    def create_view(self, on_cluster: str = "") -> str:
        """The statement of the view: groups with rows, under the names of the configuration."""
        choice = self.choice
        inner = [f"{quote(name)} AS {OWN}k{place}" for place, (name, _) in enumerate(choice.by)]
        places = {name: f"{OWN}s{place}" for place, (name, _, _, _) in enumerate(self._stored)}
        inner += [f"sum({quote(name)}) AS {alias}" for name, alias in places.items()]
        shown = [f"{OWN}k{place} AS {quote(name)}" for place, (name, _) in enumerate(choice.by)]
        for name, _ in choice.sums:
            known = places.get(f"_count_{name}")
            value = f"if({known} = 0, NULL, {places[name]})" if known else places[name]
            shown.append(f"{value} AS {quote(name)}")
        for name, _ in choice.avgs:
            known = places[f"_count_{name}"]
            shown.append(f"if({known} = 0, NULL, toFloat64({places[f'_sum_{name}']}) / {known}) AS {quote(name)}")
        shown += [f"{places[_ROWS]} AS {quote(choice.count)}"] if choice.count else []
        return render(
            "rollup_view",
            view=f"{quote(self.database)}.{quote(self.view)}",
            on_cluster=on_cluster,
            shown=",\n".join(f"    {text}" for text in shown),
            inner=",\n".join(f"        {text}" for text in inner),
            rollup=self.qualified,
            keys=", ".join(f"{OWN}k{place}" for place in range(len(choice.by))),
            rows=places[_ROWS],
        )


def expect_rollups(table: TargetTable, choices: Sequence[RollupChoice], chosen: ColumnPolicy) -> None:
    """Raises TableError for a table whose rollups could not be kept right, or an expression that a row cannot decide."""
    if not choices:
        return
    engine = table.engine
    if engine.family not in (Family.COLLAPSING, Family.VERSIONED_COLLAPSING):
        raise TableError(
            f"rollups need a table that stores differences, and {table.qualified} is a {engine.name}",
            hint="Set engine: collapsing or versioned-collapsing, and let `ch_sink init` make a new table.",
        )
    if table.distributed or engine.replicated or engine.shared:
        raise TableError(
            f"rollups of {table.qualified} ({engine.name}): the rollup and the table could be ahead of each other on "
            "different servers",
            hint="Rollups need a table of one server: leave out clickhouse.cluster and init.replication.",
        )
    if table.ttl:
        raise TableError(
            f"rollups of {table.qualified}: its TTL removes rows, which a rollup would keep", hint="Leave out the TTL."
        )
    for choice in choices:
        for key, text in choice.expressions:
            _expect_of_the_row(f"rollups.{choice.name}.{key}", text, table, chosen)


def _expect_of_the_row(where: str, text: str, table: TargetTable, chosen: ColumnPolicy) -> None:
    """Raises TableError for an expression whose value the stored row alone does not decide for ever."""
    if varies(text) or calls(text, _BESIDE) or any(token.is_word("SELECT") for token in tokenize(text)):
        raise TableError(
            f"{where}: {text} has another value each time, or reads another table: what a row has added could not be "
            "taken away again",
            hint="Name columns of the table and functions of them only.",
        )
    if out := sorted(columns_in(text, chosen.exclude)):
        raise TableError(
            f"{where} names column {out[0]!r}, which columns.exclude leaves out",
            hint="Take it out of columns.exclude, or out of the rollup.",
        )
    masked = {chosen.target(name) for name, _ in chosen.mask}
    if hidden := sorted(columns_in(text, masked)):
        if not where.rpartition(".")[0].endswith(".by"):
            raise TableError(
                f"{where} names column {hidden[0]!r}, of which the table stores a mask (columns.mask)",
                hint="A masked column can be grouped by, not summed or compared.",
            )
    constant = {name for name, _ in table.defaults}
    for name in sorted(columns_in(text, {c.name for c in table.source_columns})):
        column = table.column(name)
        if column is not None and column.default_expression and name not in constant:
            raise TableError(
                f"{where} names column {name!r}, which the server computes where an event states none "
                f"(DEFAULT {column.default_expression})",
                hint="Name the columns that it is computed from.",
            )


def probe(table: TargetTable, choice: RollupChoice) -> str:
    """The query whose columns have the types of the rollup's expressions: those of ``by``, then those that are summed.

    The server's error for it is its word on the expressions.
    """
    structure = ", ".join(f"{quote(c.name)} {c.type}" for c in table.stored_columns)
    texts = [text for _, text in (*choice.by, *choice.values)]
    shown = ", ".join(f"({text}) AS {OWN}c{place}" for place, text in enumerate(texts))
    where = f" WHERE ({choice.where})" if choice.where else ""
    return f"DESCRIBE TABLE (SELECT {shown} FROM null({literal(structure)}){where})"


def rollup_of(table: TargetTable, choice: RollupChoice, types: Sequence[str]) -> Rollup:
    """The rollup, from the types that the server gives its expressions. Raises TableError for a value that has no sum.

    ``types``: as `probe` asks for them.
    """
    keys = tuple(types[: len(choice.by)])
    keyed = [f"sum.{name}" for name, _ in choice.sums] + [f"avg.{name}" for name, _ in choice.avgs]
    sums = []
    for key, (_, text), kind in zip(keyed, choice.values, types[len(keys) :], strict=True):
        sums.append((_widest(f"rollups.{choice.name}.{key}", text, kind, choice), parse_type(kind).nullable))
    names = {c.name for c in table.stored_columns}
    used = sorted(frozenset().union(*(columns_in(text, names) for _, text in choice.expressions)))
    sign = table.engine.sign_column or "_sign"
    return Rollup(
        choice, table.database, table.qualified, sign, keys, tuple(sums), tuple(used), max(table.dedup_window, 1000)
    )


def _widest(where: str, text: str, kind: str, choice: RollupChoice) -> str:
    bare = parse_type(kind).bare
    if bare.name in ("Bool", "Nothing") or (bare.name.startswith(("Int", "UInt")) and bare.name[-1].isdigit()):
        return "Int256"
    if bare.name == "Decimal":
        return f"Decimal(76, {bare.scale})"
    if bare.name in ("Float32", "Float64", "BFloat16"):
        if choice.allow_float:
            return "Float64"
        raise TableError(
            f"{where}: {text} is a {kind}, and sums of floating-point numbers are not exact: what a row has added is "
            "not quite what it takes away",
            hint=f"Sum a Decimal, such as toDecimal64({text}, 4), or set allow_float: true.",
        )
    raise TableError(
        f"{where}: {text} is a {kind}, which has no sum", hint="Name an expression of an integer or Decimal type."
    )


def _summed(kind: str) -> str:
    return f"SimpleAggregateFunction(sum, {kind})"


def described(rollup: Rollup) -> str:
    """The rollup in a few words."""
    return f"{rollup.database}.{rollup.choice.name} by {', '.join(name for name, _ in rollup.choice.by)}"
