"""The tables of the real runs, and what is done to them.

Statements are plain SQL that both databases understand, but for what ``Dialect`` gives. Each shape is there for one
difficulty; keys are few, so that the same row is met again and again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tests.real.columns import WIDE


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one database says it, and what it has by now."""

    source: str
    grown: bool = False
    """Whether the shapes' later columns are there."""

    def insert(self, table: str, columns: str, values: Sequence[str]) -> str:
        """A row, unless its key is there already."""
        row = f"INTO {table} ({columns}) VALUES ({', '.join(values)})"
        return f"INSERT IGNORE {row}" if self.source == "mariadb" else f"INSERT {row} ON CONFLICT DO NOTHING"


Statements = Callable[[Random, Dialect], list[str]]


@dataclass(frozen=True, slots=True)
class Shape:
    """One table: how it is made, the engine of its copy, and one step of a transaction on it."""

    name: str
    ddl: Mapping[str, Sequence[str]]
    """Statements that make it, by source; a source that is not there does not have the table."""
    step: Statements
    engine: str = "replacing"
    stream: Mapping[str, Any] = field(default_factory=dict)
    """Further keys of the stream's configuration."""
    alone: Statements | None = None
    """A transaction of its own, now and then."""
    later: Sequence[str] = ()
    """Columns that are added in the middle of the run."""
    formats: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By source, ``json`` (with schemas) and ``avro``; JSON where nothing is said."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Nullable columns with a default, which Avro's converter sends in place of NULL."""

    def formats_of(self, source: str) -> Sequence[str]:
        return self.formats.get(source, ("json",))


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _both(*ddl: str) -> dict[str, Sequence[str]]:
    return {"mariadb": ddl, "postgres": ddl}


# -- balances: a key of two columns, changes of the key in every form


def _balance(rng: Random, sql: Dialect) -> list[str]:
    owner, k, other = rng.randint(1, 10), rng.randint(1, 5), rng.randint(1, 5)
    at = f"owner = {owner} AND k = {k}"
    amount = f"{rng.randint(-(10**6), 10**6)}.{rng.randint(0, 9999):04d}"
    note = rng.choice(["NULL", "''", quoted(f"note {rng.random()}"), quoted('l\'été, 漢字 🦀\n\t"x"')])
    now = quoted(f"2026-01-{rng.randint(1, 28):02d} 12:00:00.{rng.randint(0, 999999):06d}")
    row = sql.insert("balance", "owner, k, amount, note, updated", [str(owner), str(k), amount, note, now])
    free = f"NOT EXISTS (SELECT 1 FROM balance b WHERE b.owner = {owner} AND b.k = {other})"
    swap = [
        f"UPDATE balance SET k = {b} WHERE owner = {owner} AND k = {a}" for a, b in ((k, -1), (other, k), (-1, other))
    ]
    return rng.choice(
        [
            [row],
            [row],
            [f"UPDATE balance SET amount = amount + {amount}, updated = {now} WHERE {at}"],
            [f"UPDATE balance SET note = {note} WHERE owner = {owner}"],
            [f"UPDATE balance SET k = {other} WHERE {at} AND {free}"],
            [f"UPDATE balance SET k = {other}, note = {note} WHERE {at} AND {free}"],
            swap if k != other else [row],
            [f"UPDATE balance SET k = k + 100 WHERE owner = {owner} AND k < 100"],
            [f"UPDATE balance SET k = k - 100 WHERE owner = {owner} AND k > 100"],
            [f"DELETE FROM balance WHERE {at}"],
            [f"DELETE FROM balance WHERE {at}", row],
        ]
    )


# -- document: values that PostgreSQL stores apart and leaves out of updates


def _document(table: str) -> Statements:
    def step(rng: Random, sql: Dialect) -> list[str]:
        id_, k, other = rng.randint(1, 8), rng.randint(1, 3), rng.randint(1, 3)
        at = f"id = {id_} AND k = {k}"
        text = quoted(f"{rng.random()} " * rng.choice([1, 250]))
        bits = bytes(rng.randrange(256) for _ in range(64)) * rng.choice([1, 60])
        raw = f"'\\x{bits.hex()}'::bytea"
        row = sql.insert(table, "id, k, n, doc, raw", [str(id_), str(k), "0", text, raw])
        free = f"NOT EXISTS (SELECT 1 FROM {table} b WHERE b.id = {id_} AND b.k = {other})"
        return rng.choice(
            [
                [row],
                [row],
                [f"UPDATE {table} SET n = n + 1 WHERE {at}"],
                [f"UPDATE {table} SET n = n + 1 WHERE {at}", f"UPDATE {table} SET n = -n WHERE id = {id_}"],
                [f"UPDATE {table} SET doc = {text} WHERE {at}"],
                [f"UPDATE {table} SET raw = {raw}, doc = NULL WHERE {at}"],
                [f"UPDATE {table} SET k = {other} WHERE {at} AND {free}"],
                [f"UPDATE {table} SET k = {other}, n = 7 WHERE {at} AND {free}"],
                [f"UPDATE {table} SET k = k + 10 WHERE id = {id_} AND k < 10"],
                [f"UPDATE {table} SET k = k - 10 WHERE id = {id_} AND k > 10"],
                [f"DELETE FROM {table} WHERE {at}"],
                [f"DELETE FROM {table} WHERE {at}", row],
            ]
        )

    return step


def _document_ddl(table: str, *more: str) -> Sequence[str]:
    return (
        f"CREATE TABLE {table} (id INT NOT NULL, k INT NOT NULL, n INT, doc TEXT, raw BYTEA, PRIMARY KEY (id, k))",
        f"ALTER TABLE {table} ALTER doc SET STORAGE EXTERNAL, ALTER raw SET STORAGE EXTERNAL",
        *more,
    )


# -- hot, word, cleared


def _hot(rng: Random, sql: Dialect) -> list[str]:
    id_ = rng.randint(1, 4)
    row = sql.insert("hot", "id, n, v", [str(id_), "0", quoted(f"new {rng.random()}")])
    change = f"UPDATE hot SET n = n + 1, v = {quoted(str(rng.random()))} WHERE id = {id_}"
    gone = f"DELETE FROM hot WHERE id = {id_}"
    return [rng.choice([row, row, change, change, gone]) for _ in range(rng.randint(1, 6))]


_WORDS = ("a", "A", "é", "É", "", " b ", 'q"uo\\te', "l'x", "漢字 🦀", "tab\tnl\n", "{x},[y]", "null", "\\N", "0")


def _word(rng: Random, sql: Dialect) -> list[str]:
    first, second, third = (quoted(rng.choice(_WORDS)) for _ in range(3))
    k, n = rng.randint(1, 2), rng.randint(0, 999)
    return rng.choice(
        [
            [sql.insert("word", "s, k, n", [first, str(k), str(n)])],
            [sql.insert("word", "s, k, n", [third, str(k), str(n)])],
            [f"UPDATE word SET n = {n} WHERE s = {first}"],
            [f"UPDATE word SET s = {second} WHERE s = {first} AND k = {k}"],
            [f"UPDATE word SET s = {second}, n = {n} WHERE s = {first} AND k = {k}"],
            [f"DELETE FROM word WHERE s = {first} AND k = {k}"],
        ]
    )


def _cleared(rng: Random, sql: Dialect) -> list[str]:
    id_ = rng.randint(1, 30)
    return rng.choice(
        [
            [sql.insert("cleared", "id, v", [str(id_), quoted(str(rng.random()))])],
            [sql.insert("cleared", "id, v", [str(n), "'many'"]) for n in range(id_, id_ + 5)],
            [f"UPDATE cleared SET v = {quoted(str(rng.random()))} WHERE id = {id_}"],
            [f"DELETE FROM cleared WHERE id = {id_}"],
        ]
    )


_LATER = ("extra INT", "label VARCHAR(40) NOT NULL DEFAULT 'l''x'", "amount DECIMAL(10,2) DEFAULT 7.50")


def _grown(rng: Random, sql: Dialect) -> list[str]:
    id_, k, other = rng.randint(1, 12), rng.randint(1, 3), rng.randint(1, 3)
    at = f"id = {id_} AND k = {k}"
    v = quoted(str(rng.random()))
    free = f"NOT EXISTS (SELECT 1 FROM grown b WHERE b.id = {id_} AND b.k = {other})"
    row = sql.insert("grown", "id, k, v", [str(id_), str(k), v])
    steps = [
        [row],
        [f"UPDATE grown SET v = {v} WHERE {at}"],
        [f"UPDATE grown SET k = {other} WHERE {at} AND {free}"],
        [f"DELETE FROM grown WHERE {at}"],
    ]
    if sql.grown:
        extra, amount = rng.choice(["NULL", str(rng.randint(0, 99))]), rng.choice(["NULL", "7.50", "-0.01"])
        steps += [
            [sql.insert("grown", "id, k, extra, label, amount", [str(id_), str(k), extra, v, amount])],
            [f"UPDATE grown SET extra = {extra}, amount = {amount} WHERE {at}"],
            [f"UPDATE grown SET label = 'all' WHERE id = {id_}"],
        ]
    return rng.choice(steps)


# -- wide: all types


def _wide(rng: Random, sql: Dialect) -> list[str]:
    id_ = rng.randint(1, 25)
    columns = WIDE[sql.source]
    values = {
        name: rng.choice(literals if "NOT NULL" in kind else ("NULL", *literals))
        for name, (kind, literals) in columns.items()
    }
    changed = rng.sample(sorted(columns), rng.randint(1, 5))
    row = sql.insert("wide", ", ".join(["id", *values]), [str(id_), *values.values()])
    update = f"UPDATE wide SET {', '.join(f'{name} = {values[name]}' for name in changed)} WHERE id = {id_}"
    return rng.choice([[row], [row], [update], [update], [update], [f"DELETE FROM wide WHERE id = {id_}"]])


def _wide_ddl(source: str) -> str:
    columns = [f"{name} {kind}" for name, (kind, _) in WIDE[source].items()]
    return f"CREATE TABLE wide (id INT NOT NULL PRIMARY KEY, {', '.join(columns)})"


SHAPES = (
    Shape(
        "balance",
        _both(
            "CREATE TABLE balance (owner BIGINT NOT NULL, k INT NOT NULL, amount DECIMAL(20,4) NOT NULL DEFAULT 1.5, "
            "note VARCHAR(60) DEFAULT 'none', updated TIMESTAMP(6) NULL, PRIMARY KEY (owner, k))"
        ),
        _balance,
        "replacing",
        {"init": {"partition_by": "owner % 3"}},
        formats={"mariadb": ("avro",)},
        defaults={"note": "none"},
    ),
    Shape(
        "document",
        {"postgres": _document_ddl("document")},
        _document("document"),
        "replacing",
        formats={"postgres": ("avro",)},
    ),
    Shape(
        "document_full",
        {"postgres": _document_ddl("document_full", "ALTER TABLE document_full REPLICA IDENTITY FULL")},
        _document("document_full"),
        "versioned-collapsing",
    ),
    Shape(
        "hot",
        {"postgres": ("CREATE TABLE hot (id INT NOT NULL PRIMARY KEY, n BIGINT NOT NULL, v VARCHAR(40))",)},
        _hot,
        "collapsing",
    ),
    Shape(
        "word",
        # MariaDB holds "a" and "A" for one key: an update from one to the other is a key change all the same.
        {
            "mariadb": (
                "CREATE TABLE word (s VARCHAR(60) NOT NULL, k INT NOT NULL, n INT NOT NULL, PRIMARY KEY (s, k))",
            )
        },
        _word,
        # A row changes its table partition with a column outside the key.
        "sign-replacing",
        {"init": {"partition_by": "n % 3"}},
    ),
    Shape(
        "cleared",
        {"postgres": ("CREATE TABLE cleared (id INT NOT NULL PRIMARY KEY, v VARCHAR(40))",)},
        _cleared,
        "replacing",
        {"truncate": "apply"},
        lambda _rng, _sql: ["TRUNCATE TABLE cleared"],
    ),
    Shape(
        "grown",
        _both("CREATE TABLE grown (id INT NOT NULL, k INT NOT NULL, v VARCHAR(40), PRIMARY KEY (id, k))"),
        _grown,
        "replacing",
        {"evolve": "add_columns"},
        later=_LATER,
        formats={"postgres": ("avro",)},
        defaults={"amount": "7.50"},
    ),
    Shape(
        "wide",
        {source: (_wide_ddl(source),) for source in WIDE},
        _wide,
        "replacing",
        formats=dict.fromkeys(WIDE, ("json", "avro")),
        defaults={"c_def": "dflt", "c_int": "5"},
    ),
)


def shapes(source: str) -> list[Shape]:
    """Those that the source has."""
    return [shape for shape in SHAPES if source in shape.ddl]
