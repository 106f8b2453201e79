"""Looked-up rows: exact in every type when inserted again, found through the primary index."""

import numpy as np
import pyarrow as pa
import pytest

from ch_sink.clickhouse import EVERY_TYPE, ClickHouseLookup, ClickHouseWriter, Client, detect, max_version
from ch_sink.errors import TableError
from ch_sink.model.policy import policy_of
from ch_sink.ports import Fence, Insert
from ch_sink.types.arrow import arrow_type
from tests.support.endpoint import Fenced, on_engines

pytestmark = on_engines("", "25.8", long=["26.3"])

UUID = "'61f0c404-5cb3-11e7-907b-a6006ad3dba0'"
# Type and the SQL of some values, extremes among them.
VALUES: list[tuple[str, list[str]]] = [
    ("Int8", ["-128", "127"]),
    ("UInt64", ["18446744073709551615", "0"]),
    ("Int64", ["-9223372036854775808"]),
    ("Int128", ["'-170141183460469231731687303715884105728'"]),
    ("UInt128", ["'340282366920938463463374607431768211455'", "1"]),
    ("Int256", ["'-57896044618658097711785492504343953926634992332820282019728792003956564819968'", "-1"]),
    ("UInt256", ["'115792089237316195423570985008687907853269984665640564039457584007913129639935'"]),
    ("Float32", ["nan", "-inf", "1.1", "-0.0"]),
    ("Float64", ["nan", "inf", "5e-324", "-0.0"]),
    ("Nullable(Float64)", ["NULL", "0.1"]),
    ("Bool", ["true", "false"]),
    ("Nullable(Bool)", ["NULL", "true"]),
    ("String", ["unhex('00ff41c3')", "''", "'grün 𝄞'"]),
    ("Nullable(String)", ["NULL", "''"]),
    ("FixedString(4)", ["unhex('ff00')", "'abcd'"]),
    ("LowCardinality(String)", ["'é'", "unhex('ff')", "''"]),
    ("LowCardinality(Nullable(String))", ["NULL", "''", "'x'"]),
    ("LowCardinality(FixedString(3))", ["'ab'"]),
    ("LowCardinality(UInt32)", ["4294967295"]),
    ("Enum8('' = 0, 'b' = -128, 'it\\'s' = 127)", ["''", "'b'", "'it\\'s'"]),
    ("Enum16('a' = 1000, 'b' = -2000)", ["'a'", "'b'"]),
    ("Nullable(Enum8('a' = 1))", ["NULL", "'a'"]),
    ("Date", ["'1970-01-01'", "'2149-06-06'"]),
    ("Date32", ["'1900-01-01'", "'2299-12-31'"]),
    ("DateTime", ["'2106-02-07 06:28:15'", "0"]),
    ("DateTime('UTC')", ["1700000000"]),
    ("DateTime('Europe/Berlin')", ["1698541200", "1698537600"]),
    ("Nullable(DateTime('America/New_York'))", ["NULL", "1"]),
    ("DateTime64(0, 'UTC')", ["'1900-01-01 00:00:00'"]),
    ("DateTime64(3)", ["'1969-12-31 23:59:59.999'"]),
    ("DateTime64(4, 'Europe/Berlin')", ["'2100-01-01 00:00:00.1234'"]),
    ("DateTime64(6, 'UTC')", ["'1900-01-01 00:00:00.000001'", "'2299-12-31 23:59:59.999999'"]),
    ("DateTime64(9, 'UTC')", ["'1965-01-01 00:00:00.123456789'", "'2262-04-11 23:47:16.854775807'"]),
    ("Nullable(DateTime64(6, 'Asia/Tokyo'))", ["NULL", "'2024-01-01 00:00:00.5'"]),
    ("Time", ["'838:59:59'", "'-838:59:59'", "'00:00:00'"]),
    ("Nullable(Time)", ["NULL", "'25:00:00'"]),
    ("Time64(0)", ["'-100:00:00'"]),
    ("Time64(3)", ["'-596:31:23.647'", "'00:00:00.001'"]),
    ("Time64(6)", ["'838:59:59.999999'", "'-12:00:00.123456'"]),
    ("Nullable(Time64(6))", ["NULL", "'-25:00:00.5'"]),
    ("Time64(9)", ["'99:00:00.000000001'"]),
    ("Decimal(9, 4)", ["'-99999.9999'"]),
    ("Decimal(18, 10)", ["'1.25'"]),
    ("Decimal(38, 30)", ["'-1.000000000000000000000000000001'"]),
    ("Decimal(76, 60)", ["'-1234567890123456.000000000000000000000000000000000000000000000000000000000001'"]),
    ("Nullable(Decimal(76, 0))", ["NULL", f"'{'9' * 76}'"]),
    ("UUID", ["'61f0c404-5cb3-11e7-907b-a6006ad3dba0'"]),
    ("Nullable(UUID)", ["NULL", "'00000000-0000-0000-0000-000000000001'"]),
    ("IPv4", ["'255.0.0.1'"]),
    ("IPv6", ["'2001:db8::1'", "'::ffff:1.2.3.4'"]),
    ("Nullable(IPv6)", ["NULL", "'::1'"]),
    ("Array(Nullable(Int32))", ["[1, NULL, -2]", "[]"]),
    ("Array(Array(String))", ["[['a'], [], [unhex('ff')]]"]),
    ("Array(UUID)", ["['61f0c404-5cb3-11e7-907b-a6006ad3dba0']"]),
    ("Array(LowCardinality(String))", ["['a', 'a']"]),
    ("Array(UInt128)", ["[340282366920938463463374607431768211455]"]),
    ("Array(DateTime64(3, 'UTC'))", ["['2024-01-01 00:00:00.123']"]),
    ("Array(Enum8('x' = 1, 'y' = 2))", ["['x', 'y']"]),
    ("Array(Decimal(20, 2))", ["[1.25, -7]"]),
    ("Map(String, UInt8)", ["map('k', 1, 'k2', 2)", "map()"]),
    ("Map(LowCardinality(String), Nullable(String))", ["map('k', NULL, 'l', 'v')"]),
    ("Tuple(Int8, String)", ["(1, 'a')"]),
    ("Tuple(a Int8, `b c` Nullable(String))", ["(1, NULL)"]),
    ("Point", ["(1.5, -2)"]),
    ("Polygon", ["[[(0, 0), (1, 0), (1, 1)], [(0.1, 0.1), (0.2, 0.1), (0.2, 0.2)]]"]),
    ("JSON", ['\'{"a":{"b":1},"c":[1,2],"d":"x"}\'']),
    ("SimpleAggregateFunction(sum, UInt64)", ["7"]),
    ("Array(Nullable(UUID))", [f"[{UUID}, NULL]"]),
    ("Map(UUID, Nullable(UUID))", [f"map({UUID}, NULL)"]),
    ("Tuple(a UUID, `UUID` Nullable(UUID))", [f"({UUID}, NULL)"]),
    ("LowCardinality(Nullable(UUID))", [UUID, "NULL"]),
    ("SimpleAggregateFunction(anyLast, Nullable(UUID))", [UUID, "NULL"]),
    ("Array(Tuple(t Time, u UUID))", [f"[('-25:00:00', {UUID})]"]),
    ("Array(Time64(3))", ["['838:00:00.001', '-00:00:01.5']"]),
    ("Map(String, Time64(6))", ["map('a', CAST('100:00:00.000001', 'Time64(6)'))"]),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fence", [None, Fenced()], ids=["plain", "fenced"])
@pytest.mark.parametrize("engine", ["ReplacingMergeTree(ver)", "CollapsingMergeTree(sign)"])
def test_looked_up_values_are_exact_when_inserted_again(
    client: Client, database: str, engine: str, fence: Fence | None
) -> None:
    taken = [(kind, values) for kind, values in VALUES if kind != "JSON" or engine.startswith("Replacing")]
    kinds = [kind for kind, _ in taken]
    height = max(len(values) for _, values in taken)
    columns = ", ".join(f"v{n} {kind}" for n, kind in enumerate(kinds))
    client.command(
        f"CREATE TABLE {database}.t (id UInt32, ver UInt64, sign Int8, {columns}) ENGINE = {engine} ORDER BY id",
        settings=EVERY_TYPE,
    )
    rows = ", ".join(
        f"({i}, 1, 1, {', '.join(str(values[i % len(values)]) for _, values in taken)})" for i in range(height)
    )
    client.command(f"INSERT INTO {database}.t VALUES {rows}", settings={**EVERY_TYPE, "async_insert": 0})
    target = detect(client, database, "t", policy_of())

    stored = (
        ClickHouseLookup(client, target, ("id",)).fetch(pa.table({"id": pa.array(range(height), pa.uint32())})).rows
    )
    assert stored.num_rows == height
    types = {kind: stored.schema.field(f"v{n}").type for n, kind in enumerate(kinds)}
    assert {k: t for k, t in types.items() if not t.equals(arrow_type(k))} == {}
    place = stored.schema.get_field_index("id")
    moved = stored.set_column(place, "id", pa.array(np.asarray(stored.column("id")) + 1000, pa.uint32()))
    ClickHouseWriter(client, target).write(Insert(moved, "p"), "again", fence=fence)

    compared = ", ".join(
        f"groupUniqArray(tuple({_exact(f'v{n}', kind)})) AS v{n}, count() AS c{n}" for n, kind in enumerate(kinds)
    )
    both = client.rows(f"SELECT id % 1000 AS k, {compared} FROM {database}.t GROUP BY k")
    assert len(both) == height
    assert {row[f"c{n}"] for row in both for n in range(len(kinds))} == {2}
    different = {kind: row[f"v{n}"] for row in both for n, kind in enumerate(kinds) if len(row[f"v{n}"]) != 1}
    assert different == {}


def _exact(column: str, kind: str) -> str:
    """SQL that shows every bit of a value; null and an empty value differ."""
    if "Float" in kind:
        return f"isNull({column}), hex(assumeNotNull({column}))"
    if "String" in kind and "(" not in kind.replace("Nullable(", "").replace("LowCardinality(", "").replace(
        "FixedString(", ""
    ):
        return f"isNull({column}), hex(toString({column}))"
    if kind.startswith(("Array", "Map", "Tuple", "Point", "Polygon", "JSON")):
        return f"hex(toJSONString({column}))"
    return f"isNull({column}), toString({column})"


KEYS: list[tuple[str, list[str], str]] = [
    ("String", ["unhex('ff00')", "'a'"], "'b'"),
    ("LowCardinality(String)", ["'a'", "''"], "'b'"),
    ("FixedString(3)", ["'ab'"], "'abc'"),
    ("UUID", ["'61f0c404-5cb3-11e7-907b-a6006ad3dba0'"], "'61f0c404-5cb3-11e7-907b-a6006ad3dba1'"),
    ("UInt128", ["340282366920938463463374607431768211455"], "1"),
    ("Int64", ["-9223372036854775808", "9223372036854775807"], "0"),
    ("Decimal(38, 10)", ["'1.0000000001'"], "'1'"),
    ("Decimal(60, 10)", ["'-1.0000000001'"], "'1'"),
    ("DateTime64(6, 'UTC')", ["'1969-12-31 23:59:59.999999'"], "'1970-01-01 00:00:00'"),
    ("DateTime('Europe/Berlin')", ["1698541200", "1698537600"], "1"),
    ("Date32", ["'1900-01-01'"], "'1900-01-02'"),
    ("Enum8('a' = 1, 'b' = 2)", ["'a'"], "'b'"),
    ("IPv6", ["'::1'"], "'::2'"),
    ("Bool", ["true"], "false"),
    ("Nullable(UUID)", [UUID, "NULL"], "'61f0c404-5cb3-11e7-907b-a6006ad3dba1'"),
    ("Time64(6)", ["'838:00:00.000001'"], "'00:00:01'"),
    ("Time", ["'-838:00:00'"], "'00:00:01'"),
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("kind", "wanted", "other"), KEYS, ids=[k for k, _, _ in KEYS])
def test_keys_of_every_type_find_their_rows(
    client: Client, database: str, kind: str, wanted: list[str], other: str
) -> None:
    client.command(
        f"CREATE TABLE {database}.t (k {kind}, n UInt8, ver UInt64) ENGINE = ReplacingMergeTree(ver) PARTITION BY k "
        "ORDER BY (k, n) SETTINGS allow_nullable_key = 1",
        settings=EVERY_TYPE,
    )
    rows = ", ".join(f"({v}, {n}, 1)" for n, v in enumerate([*wanted, other]))
    client.command(f"INSERT INTO {database}.t VALUES {rows}", settings={"async_insert": 0})
    target = detect(client, database, "t", policy_of())
    lookup = ClickHouseLookup(client, target, ("k",))
    # The keys as the sink has them: Arrow values of the column's own type, here out of the table itself.
    everything = ClickHouseLookup(client, target, ("n",)).fetch(pa.table({"n": pa.array(range(9), pa.uint8())})).rows
    mask = pa.array([n < len(wanted) for n in everything.column("n").to_pylist()])
    keys = everything.select(["k"]).filter(mask)
    for below in (None, pa.array([2] * keys.num_rows, pa.uint64())):
        found = lookup.fetch(keys, below).rows
        assert sorted(found.column("n").to_pylist()) == list(range(len(wanted)))


def test_the_primary_index_is_used(client: Client, database: str) -> None:
    client.command(
        f"CREATE TABLE {database}.t (a UInt32, b String, v String, ver UInt64) ENGINE = ReplacingMergeTree(ver) "
        "ORDER BY (b, a) SETTINGS index_granularity = 256"
    )
    client.command(
        f"INSERT INTO {database}.t SELECT number, toString(number), 'x', 1 FROM numbers(200000)",
        settings={"async_insert": 0},
    )
    lookup = ClickHouseLookup(client, detect(client, database, "t", policy_of()), ("a", "b"))
    keys = pa.table({"a": pa.array([5, 77_777], pa.uint32()), "b": pa.array([b"5", b"77777"], pa.binary())})
    assert lookup.fetch(keys).rows.num_rows == 2
    # The same condition with the keys written out, since EXPLAIN takes no table along.
    sql = lookup.sql.replace("SELECT `a`, `b` FROM _keys", "SELECT toUInt32(5) AS a, '5' AS b")
    plan = "\n".join(str(r["explain"]) for r in client.rows(f"EXPLAIN indexes = 1 {sql}"))
    granules = [line.strip() for line in plan.splitlines() if "Granules:" in line]
    assert granules, plan
    read, total = (int(n) for n in granules[-1].removeprefix("Granules: ").split("/"))
    assert total > 700
    assert read <= 2


@pytest.mark.slow
def test_fifty_thousand_keys_in_one_query(client: Client, database: str) -> None:
    client.command(
        f"CREATE TABLE {database}.t (a UInt32, v String, ver UInt64) ENGINE = ReplacingMergeTree(ver) ORDER BY a"
    )
    client.command(f"INSERT INTO {database}.t SELECT number, toString(number), 1 FROM numbers(1000000)")
    lookup = ClickHouseLookup(client, detect(client, database, "t", policy_of()), ("a",))
    keys = pa.table({"a": pa.array(np.arange(50_000, dtype=np.uint32) * 20 + 7)})
    found = lookup.fetch(keys).rows.sort_by("a")
    assert found.column("a").to_pylist() == keys.column("a").to_pylist()
    assert found.column("v").to_pylist()[:2] == [b"7", b"27"]


def test_a_key_column_that_the_table_lacks_is_named(client: Client, database: str) -> None:
    client.command(f"CREATE TABLE {database}.t (a UInt32, ver UInt64) ENGINE = ReplacingMergeTree(ver) ORDER BY a")
    with pytest.raises(TableError, match="'nope'"):
        ClickHouseLookup(client, detect(client, database, "t", policy_of()), ("nope",))


def test_columns_that_cannot_be_inserted_are_left_out(client: Client, database: str) -> None:
    client.command(
        f"CREATE TABLE {database}.t (a UInt32, m UInt32 MATERIALIZED a + 1, al UInt32 ALIAS a, d UInt32 DEFAULT 5, "
        "ver UInt64) ENGINE = ReplacingMergeTree(ver) ORDER BY a"
    )
    client.command(f"INSERT INTO {database}.t (a, ver) VALUES (1, 1)")
    lookup = ClickHouseLookup(client, detect(client, database, "t", policy_of()), ("a",))
    assert lookup.fetch(pa.table({"a": pa.array([1], pa.uint32())})).rows.to_pylist() == [{"a": 1, "d": 5, "ver": 1}]


@pytest.mark.parametrize(
    ("kind", "values", "top"),
    [
        ("UInt128", "(1, '340282366920938463463374607431768211455'), (2, 7)", (1 << 128) - 1),
        ("UInt64", "(1, 18446744073709551615)", (1 << 64) - 1),
        ("Int64", "(1, -5)", -5),
        ("DateTime64(6, 'UTC')", "(1, '2024-01-01 00:00:00.000001')", 1_704_067_200_000_001),
        ("DateTime", "(1, 1700000000)", 1_700_000_000),
    ],
)
def test_the_highest_version_of_a_table(client: Client, database: str, kind: str, values: str, top: int) -> None:
    client.command(f"CREATE TABLE {database}.t (a UInt32, ver {kind}) ENGINE = ReplacingMergeTree(ver) ORDER BY a")
    target = detect(client, database, "t", policy_of())
    assert (max_version(client, target), max_version(client, target, empty=-1)) == (0, -1)
    client.command(f"INSERT INTO {database}.t VALUES {values}", settings={"async_insert": 0})
    assert max_version(client, target) == max_version(client, target, empty=-1) == top


def test_a_table_without_versions_has_the_highest_version_zero(client: Client, database: str) -> None:
    client.command(f"CREATE TABLE {database}.t (a UInt32, sign Int8) ENGINE = CollapsingMergeTree(sign) ORDER BY a")
    assert max_version(client, detect(client, database, "t", policy_of())) == 0


def test_awkward_column_names(client: Client, database: str) -> None:
    client.command(
        f"CREATE TABLE {database}.t (`a b` UInt32, `select` String, `q``uote` String, `_part_of` UInt8, "
        "`__rows_` UInt8, sign Int8) ENGINE = CollapsingMergeTree(sign) ORDER BY `a b`"
    )
    client.command(f"INSERT INTO {database}.t VALUES (1, 'x', 'y', 2, 3, 1)", settings={"async_insert": 0})
    lookup = ClickHouseLookup(client, detect(client, database, "t", policy_of()), ("a b", "q`uote"))
    keys = pa.table({"a b": pa.array([1], pa.uint32()), "q`uote": pa.array([b"y"], pa.binary())})
    found = lookup.fetch(keys).rows
    assert found.column_names == ["a b", "select", "q`uote", "_part_of", "__rows_", "sign"]
    assert found.num_rows == 1


@pytest.mark.parametrize("order", ["tuple()", "(`a b`, region)"])
def test_what_a_history_held_before_a_version(client: Client, database: str, order: str) -> None:
    """A second attempt at a chunk must not see what the first one stored of it."""
    client.command(
        f"CREATE TABLE {database}.t (region LowCardinality(Nullable(String)), `a b` Nullable(Int64), text String, "
        f"_version UInt128) ENGINE = MergeTree ORDER BY {order} SETTINGS allow_nullable_key = 1"
    )
    top = (1 << 127) + 5
    client.command(
        f"INSERT INTO {database}.t VALUES ('r', 1, 'one', 10), ('r', 1, 'two', 20), ('r', NULL, 'null', {top - 1}), "
        f"('r', NULL, 'newer', {top}), (NULL, 2, 'only', 7), ('s', 1, 'other key', 1)"
    )
    lookup = ClickHouseLookup(client, detect(client, database, "t", policy_of()), ("region", "a b"))
    keys = pa.table({"region": pa.array(["r", "r", None]), "a b": pa.array([1, None, 2])})

    def before(*versions: int) -> list[str]:
        below = pa.array([v.to_bytes(16, "little") for v in versions], pa.binary(16))
        return sorted(text.decode() for text in lookup.fetch(keys, below).rows.column("text").to_pylist())

    assert before(20, top, 7) == ["null", "one"]
    assert before(21, top + 1, 8) == ["newer", "only", "two"]
    assert before(0, 0, 0) == []
