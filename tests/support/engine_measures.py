"""What an engine can do of what the sink uses: a short answer for each line of the table in docs/servers.md."""

import re
from collections.abc import Callable, Mapping
from dataclasses import astuple, replace
from pathlib import Path

import pyarrow as pa

from ch_sink.clickhouse import Client, server_facts
from ch_sink.clickhouse.arrow_io import fenced
from ch_sink.clickhouse.fence import SETTINGS
from ch_sink.clickhouse.writer import PINNED
from ch_sink.errors import ClickHouseError
from tests.integration.test_recorded import made
from tests.support.fixtures import topic_of
from tests.support.one_column import stored_by
from tests.support.recorded import CASES, POLICY, equal, one_encoding_each
from tests.support.stream import Feed, types_of
from tests.unit.types.test_type_cases import CASES as TYPES
from tests.unit.types.test_type_cases import expected, outcomes_of

PAGE = Path(__file__).parents[2] / "docs" / "servers.md"
BEYOND = re.compile(r": source '(?!19|2[012])\d{4}-\d\d-\d\d[^']*', table None$")
"""A date before 1900 or after 2299, which is null in the table."""
ARRAYS = re.compile(r"Nullable\((Tuple\(items|Point)")


def recorded_faults(client: Client, database: str) -> tuple[int, dict[tuple[str, str], list[str]]]:
    """How many recorded tables there are, and what differs in those that do not equal their source.

    Each table is read in one of its encodings. Where an engine lacks nullable arrays and wide years, null arrays are
    empty and dates beyond its years are null; nothing else is forgiven.
    """
    types = replace(types_of(client), arrays="empty_for_null")
    policy = replace(POLICY, values=replace(POLICY.values, out_of_range="null"))
    narrow = server_facts(client).years.date[0] > 0
    wrong, tables = {}, one_encoding_each(CASES)
    for stream, table in tables:
        target = made(client, database, stream, table, types=types)
        Feed(client, database, target, stream, topic_of(stream, table), policy).run()
        found = equal(client, database, stream.split("-")[0], stream, table)
        if found := [one for one in found if not (narrow and BEYOND.search(one))]:
            wrong[stream, table] = found
        client.command(f"DROP TABLE {database}.`{table}`")
        client.command(f"DROP TABLE IF EXISTS {database}.`{table}_current`")
    return len(tables), wrong


def type_counts(client: Client, database: str, way: str) -> tuple[int, int, int, dict[tuple[str, str, str], object]]:
    """Of all type cases on this way: how many there are, how many dates are refused by name because the engine does not
    hold their year, how many nullable arrays and points are text, and the cases that are wrong.
    """  # fmt: skip
    years = server_facts(client).years
    found = outcomes_of([way], lambda columns: stored_by(client, database, columns), types_of(client), years)
    cases = {(family, case.what, way): case for family, members in TYPES.items() for case in members}
    refused = as_text = 0
    wrong: dict[tuple[str, str, str], object] = {}
    for place, one in found.items():
        case = cases[place]
        if "does not fit Date" in one.fault and years.date[0] > 0:
            refused += 1
        elif ARRAYS.match(case.column) and one.column == "Nullable(String)":
            as_text += 1
        elif one.fault or one.column != case.column or one.shown != expected(case):
            wrong[place] = one
    return len(found), refused, as_text, wrong


def _recorded(client: Client, database: str) -> str:
    count, wrong = recorded_faults(client, database)
    return f"{count - len(wrong)} of {count}"


def _types(client: Client, database: str) -> str:
    count, refused, as_text, wrong = type_counts(client, database, "schema")
    right = f"{count - refused - as_text - len(wrong)} of {count}"
    return right + (f"; {refused} refused, {as_text} as text" if refused or as_text else "")


def _round_trip(kind: str, values: list[str]) -> Callable[[Client, str], str]:
    def measure(client: Client, database: str) -> str:
        try:
            shown = stored_by(client, database, [(kind, pa.array(values))])[0]
        except ClickHouseError as error:
            return f"refused ({error.code})"
        return "right" if shown == [value.encode() for value in values] else "wrong"

    return measure


def _years(client: Client, database: str) -> str:
    dates, times = ("{:04} to {:04}".format(*years) for years in astuple(server_facts(client).years))
    return dates if dates == times else f"{dates}; times {times}"


def _nullable_arrays(client: Client, database: str) -> str:
    return "yes" if types_of(client).nullable_tuple else "as text"


def _policies(client: Client, database: str) -> str:
    """What a reader under the policy sees of a deleted row, against the rule that `check` goes by."""
    client.command(
        f"CREATE TABLE {database}.p (id Int32, v UInt64, d UInt8) ENGINE = ReplacingMergeTree(v, d) ORDER BY id"
    )
    client.command(f"SYSTEM STOP MERGES {database}.p")
    for values in ("(1, 1, 0), (2, 1, 0)", "(2, 2, 1)"):
        client.command(f"INSERT INTO {database}.p VALUES {values}")
    client.command(f"CREATE ROW POLICY p ON {database}.p USING d = 0 TO ALL")
    try:
        seen = client.rows(f"SELECT id, d FROM {database}.p FINAL WHERE d = 0 ORDER BY id")
    finally:
        client.command(f"DROP ROW POLICY p ON {database}.p")
    after = [row["id"] for row in seen] == [1]
    assert server_facts(client).policies_after_final is after
    return "yes" if after else "refused"


def _split(client: Client, database: str) -> str:
    client.command(
        f"CREATE TABLE {database}.s (p Int32) ENGINE = MergeTree PARTITION BY p ORDER BY p "
        "SETTINGS non_replicated_deduplication_window = 100"
    )
    for rows in ([0, 1], [0, 1, 2, 3], [0, 1, 2, 3]):
        table = pa.table({"p": pa.array(rows, pa.int32())})
        client.insert(
            f"{database}.s",
            table,
            settings={**PINNED, **SETTINGS, "insert_deduplication_token": "t"},
            query=(["p"], fenced([("p", "Int32")], "1")),
        )
    found = client.rows(f"SELECT p FROM {database}.s ORDER BY p")
    return "yes" if [row["p"] for row in found] == [0, 1, 2, 3] else "no"


def _seconds(client: Client, database: str) -> str:
    sql = "SELECT value FROM system.merge_tree_settings WHERE name = 'replicated_deduplication_window_seconds'"
    seconds = int(client.rows(sql)[0]["value"])
    return f"{seconds // 86_400} days" if seconds >= 86_400 else f"{seconds // 3_600} h"


def _exchange(client: Client, database: str) -> str:
    for name in ("a", "b"):
        client.command(f"CREATE TABLE {database}.{name} (i Int8) ENGINE = MergeTree ORDER BY i")
    client.command(f"EXCHANGE TABLES {database}.a AND {database}.b")
    return "yes"


MEASURES: Mapping[str, Callable[[Client, str], str]] = {
    "UUID": _round_trip("UUID", ["61f0c404-5cb3-11e7-907b-a6006ad3dba0"]),
    "Time64 beyond a day": _round_trip("Time64(6)", ["838:00:00.000001", "-25:00:00.500000"]),
    "JSON": _round_trip("JSON", ['{"a":{"b":1}}']),
    "Years of dates and times": _years,
    "Nullable arrays, maps and points": _nullable_arrays,
    "Row policies that hide deleted rows": _policies,
    "Parts of one insert are each stored once": _split,
    "Tokens are remembered, by default": _seconds,
    "`EXCHANGE TABLES`": _exchange,
    "Types of all connectors": _types,
    "Recorded tables equal their source": _recorded,
}
HEAVY = ("Types of all connectors", "Recorded tables equal their source")
"""Lines that take seconds; `make test` measures them on 25.8 and 26.3 by tests of their own."""


def cells(engine: str) -> dict[str, str]:
    """The column of an engine in the page's table, by line; its first line names the engine."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    at = rows[0].index(engine)
    return {row[0]: row[at] for row in rows[2:] if len(row) == len(rows[0])}


def with_cells(engine: str, found: Mapping[str, str]) -> str:
    """The page with these cells in the column of an engine."""
    text = PAGE.read_text(encoding="utf-8").splitlines()
    first = next(i for i, line in enumerate(text) if line.startswith("|"))
    at = [cell.strip() for cell in text[first].strip("|").split("|")].index(engine)
    for i, line in enumerate(text):
        row = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and row[0] in found:
            row[at] = found[row[0]]
            text[i] = f"| {' | '.join(row)} |"
    return "\n".join(text) + "\n"
