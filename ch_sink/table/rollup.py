"""Rollups: sums, counts and averages beside a table that stores differences, each kept right by the same differences.

A rollup is an ``AggregatingMergeTree`` of sums. A row that comes adds its values, a row that goes takes them away, so
every statement here is one over rows with a sign: those of a chunk, of the table, or of its view with a sign of 1.
"""

from dataclasses import dataclass
from hashlib import blake2b

from ch_sink.types.chtype import parse_type
from ch_sink.types.sql import OWN, literal, quote

_SIGN = f"{OWN}sign"
_COMMENT = "Rollup of {} by ch_sink"
_ROWS = "_rows"


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
    meaning: tuple[str, ...] = ()
    """Further inputs of the expressions' values: the types of these columns, the server and its settings."""

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
        sums = [(name, f"SimpleAggregateFunction(sum, {kind})") for name, _, kind, _ in self._stored]
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
    def groups(self) -> str:
        """The SELECT of the groups that have rows, as the rollup has them."""
        keys = ", ".join(quote(name) for name, _ in self.choice.by)
        return f"SELECT 1 FROM {self.qualified} GROUP BY {keys} HAVING sum({_ROWS}) != 0"

    def difference(self, rows: str) -> str:
        """The SELECT of what the rollup has more than these living rows: a row for each group that differs.

        Floating-point sums may be off by a part in a million.
        """
        keys = ", ".join(quote(name) for name, _ in self.choice.by)
        mine, theirs, sums, shown, differ = [], [], [], [], []
        for place, (name, _, kind, _) in enumerate(self._stored):
            value, of = f"{OWN}s{place}", quote(name)
            mine.append(f"CAST({of}, {literal(kind)}) AS {of}")
            theirs.append(f"-{of}")
            sums.append(f"sum({of}) AS {value}, max(abs({of})) AS {value}m")
            shown.append(f"{value} AS {of}")
            differ.append(f"NOT abs({value}) <= 1e-6 * {value}m" if kind == "Float64" else f"{value} != 0")
        both = (
            f"SELECT {keys}, {', '.join(mine)} FROM {self.qualified} "
            f"UNION ALL SELECT {keys}, {', '.join(theirs)} FROM ({self.sums_of(rows, '1')})"
        )
        summed = f"SELECT {keys}, {', '.join(sums)} FROM ({both}) GROUP BY {keys}"
        return f"SELECT {keys}, {', '.join(shown)} FROM ({summed}) WHERE {' OR '.join(differ)}"

    @property
    def definition(self) -> str:
        """A digest of what the rollup holds and shows: another one if it has to be computed again."""
        text = repr((self.columns, self.sums_of("t", self.sign), self.create_view(), self.table, self.meaning))
        return blake2b(text.encode(), digest_size=8).hexdigest()

    @property
    def owned(self) -> str:
        """The comment of the rollup's view, and how that of its table begins, whatever its definition."""
        return _COMMENT.format(self.table.replace("`", ""))

    def comment(self, run: str = "") -> str:
        """The comment of the rollup's table once it is filled, or as the job of this run has left it.

        The run is that of a claim: what was stored under a later one may be in the table and not in the rollup.
        """
        return f"{self.owned}, filled as {self.definition}" + (f", kept by run {run}" if run else "")

    def create(self, name: str = "") -> str:
        """The statement that creates the rollup's table, to be filled; or one of this name, which takes its place."""
        nullable = ", allow_nullable_key = 1" if any(parse_type(kind).nullable for kind in self.by) else ""
        columns = ",\n".join(f"    {quote(column)} {kind}" for column, kind in self.columns)
        return (
            f"CREATE TABLE IF NOT EXISTS {quote(self.database)}.{quote(name or self.choice.name)}\n(\n{columns}\n)\n"
            f"ENGINE = AggregatingMergeTree\nORDER BY ({', '.join(quote(column) for column, _ in self.choice.by)})\n"
            f"SETTINGS non_replicated_deduplication_window = {self.dedup_window}{nullable}\n"
            f"COMMENT {literal(self.comment() if name else f'{self.owned}, to be filled')}"
        )

    def fill(self, name: str, condition: str) -> str:
        """The statement that computes the rollup from the table, into a table of this name.

        ``condition``: of the fence, without which it fails; empty for none.
        """
        alive = f"(SELECT * FROM {self.table} WHERE throwIf(NOT ({condition}), 'superseded') = 0)"
        columns = ", ".join(quote(column) for column, _ in self.columns)
        summed = self.sums_of(alive if condition else self.table, quote(self.sign))
        return f"INSERT INTO {quote(self.database)}.{quote(name)} ({columns}) {summed}"

    def keep(self, run: str) -> str:
        """The statement by which the job of this run says that the rollup is as the table is."""
        return f"ALTER TABLE {self.qualified} MODIFY COMMENT {literal(self.comment(run))}"

    def create_view(self) -> str:
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
        return (
            f"CREATE OR REPLACE VIEW {quote(self.database)}.{quote(self.view)} AS\nSELECT\n"
            + ",\n".join(f"    {text}" for text in shown)
            + "\nFROM\n(\n    SELECT\n"
            + ",\n".join(f"        {text}" for text in inner)
            + f"\n    FROM {self.qualified}\n    GROUP BY {', '.join(f'{OWN}k{n}' for n in range(len(choice.by)))}\n)\n"
            f"WHERE {places[_ROWS]} != 0\nCOMMENT {literal(self.owned)}"
        )
