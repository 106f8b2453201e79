"""The procedure of ``verify --against COPY``: a table against a copy of it that stands still.

If the copy has the table's version column, its highest version tells which changes it can have: a row whose version in
the table is higher has changed since, and is not judged.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from ch_sink.clickhouse import Client
from ch_sink.errors import StreamFailed
from ch_sink.merge import version_column
from ch_sink.table.model import Family, TargetTable
from ch_sink.trust.condition import expect_condition
from ch_sink.trust.copies import Copy, opened
from ch_sink.trust.differences import Differences
from ch_sink.trust.report import Report
from ch_sink.trust.shadow import shadow_of, shadow_tables
from ch_sink.trust.sides import TIMES, Side, hashed
from ch_sink.trust.subject import Options, Subject, chosen_columns
from ch_sink.trust.verify import FOUND
from ch_sink.types.column import Column
from ch_sink.types.lexer import columns_in
from ch_sink.types.sql import literal, quote
from ch_sink.types.utc import in_utc, text_in_utc

__all__ = ["compared_with_copy"]

_SETTINGS: dict[str, str | int] = {
    # A null is no default: the copy would be called equal to a table that it does not equal.
    "insert_null_as_default": 0,
    # Equal blocks of rows without a key are different rows.
    "insert_deduplicate": 0,
    "max_bytes_before_external_group_by": 1 << 30,
    "max_bytes_before_external_sort": 1 << 30,
    "allow_suspicious_types_in_group_by": 1,
}

_HINT = "Make the copy with FINAL, or from the stream's view."


def compared_with_copy(
    subject: Subject, name: str, options: Options, say: Callable[[str], None] = lambda _: None
) -> Report:
    """Compare the table with a copy, named as `opened` takes it.

    *Missing* are rows that only the copy has. Columns that the copy lacks, or has in another type, are left out.

    Raises ConfigError and StreamFailed if that is impossible; ChSinkError.
    """
    began = time.monotonic()
    client, table, wanted = subject.client, subject.table, chosen_columns(subject, options)
    expect_condition(subject, options.condition)
    shape = shadow_of(table, subject.database, subject.key, subject.columns)
    with shadow_tables(client, shape) as shadow, opened(client, name, table, subject.database) as copy:
        known = tuple(c for c in subject.columns if copy.types.get(c.name) == c.type)
        _expect_known(subject, options, copy, known)
        compared = tuple(c for c in known if c in wanted)
        say(f"reading {copy.name}")
        _fill(subject, shadow.table, copy, known)
        there, here = (Side(one, subject.key, compared, subject.condition) for one in (shadow.table, table))
        differences = Differences(client, shadow.differences, there, here, options.share, options.condition)
        say("comparing checksums")
        totals = differences.totals()
        since = 0
        if differences.find(FOUND, totals) and (newer := _newer(client, table, copy)):
            since = differences.drop(FOUND, newer)
        report = Report.of(
            differences,
            FOUND,
            options.examples,
            stream=subject.settings.name,
            table=table,
            against=f"copy {copy.name}",
            rows=totals.table_rows,
        )
        shadow.expect_own(client)
        return replace(
            report,
            share=options.share,
            since=since,
            seconds=time.monotonic() - began,
            left_out=tuple(c.name for c in wanted if c not in compared),
        )


def _expect_known(subject: Subject, options: Options, copy: Copy, known: Iterable[Column]) -> None:
    """Raises StreamFailed if the copy lacks a column of the key or of the condition."""
    names = {column.name for column in known}
    own = {column.name: column.type for column in subject.table.columns}
    asked = columns_in(options.condition, own)
    for name in (*subject.key, *sorted(asked)):
        if name not in names:
            column = f"column {name!r} of {subject.table.qualified}"
            raise StreamFailed(
                (
                    f"{copy.name} has {column} as {copy.types[name]}, and not as {own[name]}"
                    if name in copy.types
                    else f"{copy.name} lacks {column}"
                )
                + (": rows cannot be told apart without it" if name in subject.key else ", which --where names"),
                hint="Name a copy with all columns of the key." if name in subject.key else "Name other columns.",
            )


def _fill(subject: Subject, shadow: TargetTable, copy: Copy, columns: Sequence[Column]) -> None:
    """Store the rows that readers of the copy see, if it has the sink's own columns, or all its rows."""
    engine, names = subject.table.engine, ", ".join(quote(c.name) for c in columns)
    sign = engine.sign_column or ("_sign" if engine.family is Family.MERGE_TREE else "")
    rows, own = copy.relation, {"_op": "'r'", "_sign": "1", "_version": "0"}
    if not subject.key or engine.family in (Family.COLLAPSING, Family.VERSIONED_COLLAPSING):
        if sign in copy.types:  # as many rows as there are more +1 than −1
            inner = f"SELECT {names}, sum(toInt64({quote(sign)})) AS {TIMES} FROM {copy.relation} GROUP BY {names}"
            rows = f"(SELECT {names} FROM ({inner} HAVING {TIMES} > 0) ARRAY JOIN range(toUInt64({TIMES})))"
    elif version := _version(subject.table, copy):
        key = ", ".join(quote(name) for name in subject.key)
        dead = {m: v for m, v in {engine.is_deleted_column: "!= 0", sign: "< 0"}.items() if m and m in copy.types}
        # A copy may compute columns, which * leaves out.
        read = ", ".join([names, *map(quote, dead)])
        final = " FINAL" if copy.replaces else ""
        if not final:
            _expect_order(subject, copy, version, [*(hashed(c) for c in columns), *map(quote, dead)])
        newest = f"SELECT {read} FROM {copy.relation}{final} ORDER BY {key}, {quote(version)} DESC LIMIT 1 BY {key}"
        marks = " OR ".join(f"{quote(mark)} {value}" for mark, value in dead.items())
        rows = f"(SELECT {names} FROM ({newest}) WHERE NOT ({marks or 0}))"
    if subject.key:
        own = {}
        _expect_one(subject, copy, rows, "count()", "several rows of one key")
    listed = ", ".join([names, *map(quote, own)])
    subject.client.command(
        f"INSERT INTO {shadow.qualified} ({listed}) SELECT {', '.join([names, *own.values()])} FROM {rows}",
        settings=_SETTINGS,
        again=False,
        doing=f"read {copy.name}",
    )


def _expect_order(subject: Subject, copy: Copy, version: str, values: Sequence[str]) -> None:
    """Raises StreamFailed if rows of one key and version differ, of which the copy does not tell the later one."""
    key, version = ", ".join(quote(name) for name in subject.key), quote(version)
    each = f"uniqExact(sipHash64({', '.join(values)})) AS {TIMES}"
    rows = f"(SELECT {key}, {version}, {each} FROM {copy.relation} GROUP BY {key}, {version})"
    _expect_one(subject, copy, rows, f"argMax({TIMES}, {version})", "different rows of one key and version")


def _expect_one(subject: Subject, copy: Copy, rows: str, number: str, what: str) -> None:
    """Raises StreamFailed if the number is above 1 for a key."""
    key = ", ".join(quote(name) for name in subject.key)
    found = subject.client.rows(
        f"SELECT {key} FROM {rows} GROUP BY {key} HAVING {number} > 1 LIMIT 1",
        settings=_SETTINGS,
        doing=f"count the keys of {copy.name}",
    )
    if found:
        shown = ", ".join(f"{name}={found[0][name]!r}" for name in subject.key)
        raise StreamFailed(f"{copy.name} has {what}: {shown}", hint=_HINT)


def _version(table: TargetTable, copy: Copy) -> str:
    """The table's version column, if the copy has it in the same type; else empty."""
    column = table.column(version_column(table) or "")
    return column.name if column is not None and copy.types.get(column.name) == column.type else ""


def _newer(client: Client, table: TargetTable, copy: Copy) -> str:
    """The condition on differences whose rows in the table are newer than the copy; empty if that cannot be told."""
    if not (version := _version(table, copy)):
        return ""
    kind = literal(in_utc(copy.types[version]))
    [newest] = client.rows(
        f"SELECT count() AS n, {text_in_utc(f'max({quote(version)})', copy.types[version])} AS v FROM {copy.relation}",
        doing=f"look at {copy.name}",
    )
    if not int(newest["n"]):
        return ""
    return f"ifNull(accurateCastOrNull(table_version, {kind}) > CAST({literal(str(newest['v']))}, {kind}), 0)"
