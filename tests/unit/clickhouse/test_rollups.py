"""Rollups on the real engine: what they store of each kind of value, and what is refused, in which words."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from ch_sink.clickhouse import Client, detect, planned_rollups
from ch_sink.clickhouse.rollups import fill_rollups
from ch_sink.clickhouse.writer import ClickHouseWriter
from ch_sink.errors import TableError
from ch_sink.memory import MemoryLedger
from ch_sink.model.policy import ColumnPolicy, policy_of
from ch_sink.table import rollup_plan
from ch_sink.table.model import TargetTable
from ch_sink.table.rollup import RollupChoice

pytestmark = pytest.mark.integration

COLUMNS = (
    "id Int64, day Date, kind LowCardinality(Nullable(String)), mood Enum8('a' = 1, 'b' = 2), amount Decimal(12, 2), "
    "small Nullable(UInt8), big UInt64, weight Float64, at DateTime64(3, 'Europe/Berlin'), note String DEFAULT 'n', "
    "made DateTime DEFAULT now(), secret String, _sign Int8, _version UInt128"
)


def table_of(client: Client, database: str, engine: str = "CollapsingMergeTree(_sign)", rest: str = "") -> TargetTable:
    client.command(f"CREATE TABLE {database}.t ({COLUMNS}) ENGINE = {engine} ORDER BY id {rest}")
    return detect(client, database, "t", policy_of())


def choice(**changed: Any) -> RollupChoice:
    return replace(RollupChoice("r", (("day", "day"),), count="n"), **changed)


def with_rollup(client: Client, table: TargetTable, made: RollupChoice) -> TargetTable:
    ready = replace(table, rollups=planned_rollups(client, table, [made], ColumnPolicy()))
    ledger = MemoryLedger("s")
    fill_rollups(client, ready, lambda: [ledger.begin("id", 0, None, "rollups")], doubtful=False)
    return ready


EVERYTHING = choice(
    by=(("day", "day"), ("kind", "kind"), ("mood", "mood"), ("hour", "toHour(at)"), ("id", "note")),
    sums=(("amount", "amount"), ("small", "small"), ("big", "big"), ("flag", "big > 3"), ("weight", "weight")),
    avgs=(("mean", "small"),),
    allow_float=True,
)


def block(signs: list[int], **columns: pa.Array) -> pa.Table:
    count = len(signs)
    plain = {
        "day": pa.array([0] * count, pa.uint16()),
        "kind": pa.array(["x", None] * count).slice(0, count),
        "mood": pa.array(["a"] * count),
        "amount": pa.array([Decimal("1.25")] * count, pa.decimal128(12, 2)),
        "small": pa.array([None, 7] * count, pa.uint8()).slice(0, count),
        "big": pa.array([2**63] * count, pa.uint64()),
        "weight": pa.array([0.5] * count),
        "at": pa.array([1_000_000_000_123] * count, pa.timestamp("ms", "UTC")),
        "note": pa.array([None] * count, pa.string()),
    }
    return pa.table({**plain, **columns, "_sign": pa.array(signs, pa.int8())})


def test_a_profile_may_describe_subcolumns(client: Client, database: str) -> None:
    more = dict.fromkeys(("describe_include_subcolumns", "describe_include_virtual_columns"), "1")
    user = Client(replace(client.settings, settings=tuple(more.items())))
    with_rollup(user, table_of(client, database), choice(by=(("kind", "kind"),), sums=(("small", "small"),)))
    assert client.rows(f"SELECT count() AS n FROM {database}.r_current") == [{"n": 0}]
    user.close()


def test_every_kind_of_value_is_summed_up_as_the_table_stores_it(client: Client, database: str) -> None:
    table = with_rollup(client, table_of(client, database), EVERYTHING)
    writer = ClickHouseWriter(client, table)
    writer.roll_up("r", block([1, 1, 1]), "one")
    writer.roll_up("r", block([1, 1, 1]), "one")
    writer.roll_up("r", block([-1, 1]), "two")
    rows = client.rows(f"SELECT * FROM {database}.r_current ORDER BY kind NULLS LAST")
    assert list(rows[0]) == [
        "day",
        "kind",
        "mood",
        "hour",
        "id",
        "amount",
        "small",
        "big",
        "flag",
        "weight",
        "mean",
        "n",
    ]
    assert [
        (r["kind"], r["id"], r["hour"], r["amount"], r["small"], r["big"], r["flag"], r["mean"], r["n"]) for r in rows
    ] == [
        ("x", "n", 3, Decimal("1.25"), None, 2**63, 1, None, 1),
        (None, "n", 3, Decimal("2.50"), 14, 2**64, 2, 7.0, 2),
    ]
    writer.roll_up("r", block([-1, -1]), "three")
    writer.roll_up("r", block([-1], kind=pa.array([None], pa.string()), small=pa.array([7], pa.uint8())), "four")
    assert client.rows(f"SELECT * FROM {database}.r_current") == []


REFUSED = [
    (choice(by=(("day", "toDat(created)"),)), r"rollups.r.by.day: the server refuses toDat\(created\): .*toDat"),
    (choice(sums=(("x", "nothing + 1"),)), "rollups.r.sum.x: the server refuses nothing .+ 1: .*nothing"),
    (choice(where="day >"), "rollups.r.where: the server refuses day >"),
    (choice(where="count() > 1"), "rollups.r.where: the server refuses"),
    (choice(sums=(("x", "weight"),)), "rollups.r.sum.x: weight is a Float64, and sums of floating-point numbers"),
    (choice(avgs=(("x", "note"),)), "rollups.r.avg.x: note is a String, which has no sum"),
    (choice(by=(("d", "today() - day"),)), "rollups.r.by.d: .* calls today, "),
    (
        choice(by=(("d", "parseDateTime64BestEffortUSOrNull(note)"),)),
        "by.d: .* calls parseDateTime64BestEffortUSOrNull",
    ),
    (choice(by=(("d", "toDate(PARSEDATETIMEBESTEFFORT(note))"),)), "rollups.r.by.d: .*PARSEDATETIMEBESTEFFORT"),
    (choice(where="id IN (SELECT 1)"), "rollups.r.where: .* reads another table"),
    (choice(where="id IN system.one"), "rollups.r.where: .* reads another table"),
    (choice(where="id NOT IN (other)"), "rollups.r.where: .* reads another table"),
    (choice(by=(("x", "in(id, other)"),)), "rollups.r.by.x: .* reads another table"),
    (choice(by=(("x", "count() OVER (PARTITION BY id)"),)), "rollups.r.by.x: .* calls count, "),
    (choice(by=(("x", "weight"),)), "rollups.r.by.x: weight is a Float64, and a table merges 0.0 with -0.0"),
    (choice(by=(("x", "note::JSON"),)), "rollups.r.by.x: note::JSON is a JSON, which no sorting key can have"),
    (choice(sums=(("x", "dictGet('d', 'a', toUInt64(id))"),)), "rollups.r.sum.x: .* calls dictGet, "),
    (choice(by=(("x", "later(id)"),)), "rollups.r.by.x: .* calls later, "),
    (choice(by=(("x", "sum(id)"),)), "rollups.r.by.x: .* calls sum, "),
    (choice(by=(("x", "id + arraySum(x -> toUInt8(`NOW`()) + x, [1])"),)), "rollups.r.by.x: .* calls NOW, "),
    (choice(where="connectionId() > 1 OR blockSize() > 1"), "rollups.r.where: .* calls connectionId, "),
    (choice(by=(("x", "cityHash64(*)"),)), r"rollups.r.by.x: cityHash64\(\*\) does not name the columns"),
    (choice(by=(("x", "tuple(t.* EXCEPT id)"),)), "rollups.r.by.x: .*"),
    (choice(by=(("x", "current_date"),)), "rollups.r.by.x: .*current_date"),
    (choice(by=(("m", "made"),)), "rollups.r.by.m names column 'made', which the server computes"),
    (choice(by=(("m", "gone"),)), "rollups.r.by.m names column 'gone', which columns.exclude leaves out"),
    (
        choice(sums=(("m", "length(secret)"),)),
        "rollups.r.sum.m names column 'secret', of which the table stores a mask",
    ),
]
CHOSEN = ColumnPolicy(exclude=("gone",), mask=(("secret", "sha256"),))


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("made", "said"), REFUSED, ids=range(len(REFUSED)))
def test_what_no_difference_could_undo_is_refused_by_name(
    client: Client, database: str, made: RollupChoice, said: str
) -> None:
    table = table_of(client, database)
    client.command(
        f"CREATE DICTIONARY {database}.d (id UInt64, a Int64) PRIMARY KEY id "
        "SOURCE(CLICKHOUSE(QUERY 'SELECT 1 AS id, 1 AS a')) LAYOUT(FLAT()) LIFETIME(0)"
    )
    client.command("CREATE OR REPLACE FUNCTION later AS (x) -> x + 1")
    made = replace(made, sums=tuple((name, text.replace("'d'", f"'{database}.d'")) for name, text in made.sums))
    with pytest.raises(TableError, match=said):
        planned_rollups(client, table, [made], CHOSEN)


USEFUL = [
    "CASE WHEN id > 1 THEN 'a' ELSE kind END",
    "multiIf(big BETWEEN 1 AND 2, 1, 2)::Nullable(Int64)",
    "toStartOfInterval(at, INTERVAL 1 WEEK)",
    "date_trunc('month', at)",
    "date_add(DAY, 1, day)",
    "EXTRACT(YEAR FROM day)",
    "toDecimal64(weight, 4)",
    "coalesce(kind, 'none') || note",
    "arrayFilter(x -> x > 1, [big, 2])[1]",
    "trim(BOTH ' ' FROM note) ILIKE '%x%'",
    "formatDateTime(at, '%Y', 'UTC')",
    "JSONExtractString(note, 'a', 'b')",
    "cityHash64(id, note) % 16",
    "NOT small IS NULL",
    "CAST(mood AS String)",
    "at + INTERVAL 1 DAY - toIntervalHour(1)",
    "dateDiff('day', day, toDate(at, 'Asia/Tokyo'))",
    "toTimeZone(at, 'UTC')",
    "toDate(parseDateTime(note, '%Y-%m-%d'))",
]


def test_functions_of_the_row_are_served(client: Client, database: str) -> None:
    made = choice(by=tuple((f"c{place}", text) for place, text in enumerate(USEFUL)))
    assert planned_rollups(client, table_of(client, database), [made], ColumnPolicy())


def test_a_column_hides_the_function_of_its_name(client: Client, database: str) -> None:
    client.command(
        f"CREATE TABLE {database}.t (id Int64, user String, today Date, _sign Int8) "
        "ENGINE = CollapsingMergeTree(_sign) ORDER BY id"
    )
    table = detect(client, database, "t", policy_of())
    made = choice(by=(("user", "lower(user)"), ("day", "today")), sums=(("user", "length(user)"),))
    assert planned_rollups(client, table, [made], ColumnPolicy())


def test_no_function_that_varies_is_forgotten(client: Client) -> None:
    """For the servers that do not say which ones vary."""
    found = client.rows(
        "SELECT name, COLUMNS('^deterministic$') FROM system.functions WHERE NOT is_aggregate AND origin = 'System'"
    )
    if "deterministic" not in found[0]:
        pytest.skip("this server does not say which functions vary")
    varying = {str(row["name"]) for row in found if row["deterministic"] != 1}
    listed = {str(row["name"]) for row in found if rollup_plan._VARYING.fullmatch(str(row["name"]))}
    assert varying - listed == set()
    # These take this day or this year where a text has none.
    guesses = {name for name in map(str, (row["name"] for row in found)) if "BestEffort" in name}
    assert guesses
    assert guesses <= listed
    listed -= guesses
    assert {name for name in listed - varying if not name.startswith(("__", "ai", "AI", "timeSeries", "pg"))} == {
        "getMaxTableNameLengthForDatabase",
        "globalVariable",
        "hasThreadFuzzer",
        "naiveBayesNgrams",
        "randomHadamardTransform",
        "tid",
    }


def test_a_list_of_values_is_compared_with(client: Client, database: str) -> None:
    listed = choice(where="id IN (1, -2, NULL) AND (id, day) NOT IN ((1, toDate('2026-01-01')))")
    assert planned_rollups(client, table_of(client, database), [listed], ColumnPolicy())


def test_a_masked_column_can_be_grouped_by(client: Client, database: str) -> None:
    made = planned_rollups(client, table_of(client, database), [choice(by=(("s", "secret"),))], CHOSEN)
    assert made[0].columns[0] == ("s", "String")


@pytest.mark.parametrize(
    ("engine", "rest", "said"),
    [
        ("ReplacingMergeTree(_version)", "", "rollups need a table that stores differences"),
        ("MergeTree", "", "rollups need a table that stores differences"),
        ("CollapsingMergeTree(_sign)", "TTL day + INTERVAL 1 YEAR", "its TTL removes rows"),
    ],
)
def test_tables_that_lose_rows_or_store_no_differences_have_no_rollups(
    client: Client, database: str, engine: str, rest: str, said: str
) -> None:
    with pytest.raises(TableError, match=said):
        planned_rollups(client, table_of(client, database, engine, rest), [choice()], ColumnPolicy())


def test_a_column_with_a_ttl_of_its_own_is_refused_where_a_rollup_uses_it(client: Client, database: str) -> None:
    table = table_of(client, database)
    client.command(f"ALTER TABLE {database}.t MODIFY COLUMN small TTL day + INTERVAL 1 DAY")
    with pytest.raises(TableError, match=r"rollups\.r\.sum\.x names column 'small', whose TTL replaces values"):
        planned_rollups(client, table, [choice(sums=(("x", "small + 1"),))], ColumnPolicy())
    assert planned_rollups(client, table, [choice(sums=(("x", "amount"),))], ColumnPolicy())


def test_a_rollup_is_another_one_where_its_expressions_mean_something_else(client: Client, database: str) -> None:
    made = choice(by=(("s", "length(secret)"),))

    def definition(of: Client = client) -> str:
        return planned_rollups(of, detect(client, database, "t", policy_of()), [made], ColumnPolicy())[0].definition

    table_of(client, database)
    first = definition()
    assert definition() == definition(Client(client.settings)) == first
    saturating = (("date_time_overflow_behavior", "saturate"),)
    assert definition(Client(replace(client.settings, settings=saturating))) != first
    client.command(f"ALTER TABLE {database}.t MODIFY COLUMN secret FixedString(10)", settings={"mutations_sync": 2})
    assert definition() != first


def test_a_time_without_a_zone_is_of_the_servers_day_whatever_the_session_says(client: Client) -> None:
    elsewhere = Client(replace(client.settings, settings=(("session_timezone", "Pacific/Kiritimati"),)))
    moment = "SELECT toString(toDate(toDateTime64(1700000000, 3))) AS day, timezone() AS zone"
    assert elsewhere.rows(moment) == client.rows(moment)
