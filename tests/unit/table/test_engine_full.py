"""Engine clauses as real servers write them, taken apart."""
# ruff: noqa: E501

from dataclasses import dataclass

import pytest

from ch_sink.errors import TableError
from ch_sink.table.engine_full import DistributedOver, distributed_over, is_version_type, parse_engine, to_engine
from ch_sink.table.model import Family
from ch_sink.types.column import Column
from tests.support.engine import Engine as ClickHouse

TAIL = " ORDER BY id SETTINGS index_granularity = 8192"
COLUMNS = tuple(
    Column(name, kind)
    for name, kind in {
        "id": "Int64", "ver": "UInt64", "version": "UInt64", "_version": "UInt64", "sign": "Int8", "_sign": "Int8",
        "is_deleted": "UInt8", "_is_deleted": "UInt8", "deleted": "UInt8", "ts": "DateTime64(3)", "we ird": "UInt64",
        "a,b": "UInt64", "amount": "Nullable(Int64)", "_peerdb_version": "Int64", "_peerdb_is_deleted": "UInt8",
        "updated_at": "DateTime", "SETTINGS": "UInt64", "ver)": "UInt64",
    }.items()
)  # fmt: skip
FEW = tuple(c for c in COLUMNS if c.name not in ("_sign", "sign", "_version"))


@dataclass(frozen=True)
class Case:
    """An ``engine_full`` and what must come of it."""

    text: str
    family: Family
    version: str | None = None
    sign: str | None = None
    is_deleted: str | None = None
    partition: str = ""
    order: str = "id"
    ttl: str = ""
    columns: tuple[Column, ...] = FEW
    settings: dict[str, str] | None = None


R, C, V, M = Family.REPLACING, Family.COLLAPSING, Family.VERSIONED_COLLAPSING, Family.MERGE_TREE
PATH = "'/clickhouse/tables/{uuid}/{shard}', '{replica}'"

CASES = [
    # ReplacingMergeTree, its four forms
    Case("ReplacingMergeTree" + TAIL, R),
    Case("ReplacingMergeTree()" + TAIL, R),
    Case("ReplacingMergeTree(ver)" + TAIL, R, "ver"),
    Case("ReplacingMergeTree(ver)" + TAIL, R, "ver", "_sign", columns=COLUMNS),
    Case("ReplacingMergeTree(ver, is_deleted)" + TAIL, R, "ver", None, "is_deleted", columns=COLUMNS),
    Case("ReplacingMergeTree(_version, _is_deleted)" + TAIL, R, "_version", None, "_is_deleted", columns=COLUMNS),
    Case("ReplacingMergeTree(_version, is_deleted) PRIMARY KEY id ORDER BY id SETTINGS index_granularity = 8192",
         R, "_version", None, "is_deleted", columns=COLUMNS),
    Case("ReplacingMergeTree(_peerdb_version) PRIMARY KEY id ORDER BY id SETTINGS index_granularity = 8192",
         R, "_peerdb_version"),
    Case("ReplacingMergeTree(updated_at) ORDER BY (id, toDate(ts))", R, "updated_at", order="(id, toDate(ts))"),
    Case("ReplacingMergeTree(`we ird`)" + TAIL, R, "we ird"),
    Case("ReplacingMergeTree(`a,b`, `deleted`)" + TAIL, R, "a,b", None, "deleted"),
    Case("ReplacingMergeTree(`ver)`, is_deleted)" + TAIL, R, "ver)", None, "is_deleted"),
    Case('ReplacingMergeTree("ver")' + TAIL, R, "ver"),
    # Replicated: paths with commas, parentheses, quotes, macros
    Case(f"ReplicatedReplacingMergeTree({PATH}){TAIL}", R),
    Case(f"ReplicatedReplacingMergeTree({PATH}, ver){TAIL}", R, "ver"),
    Case(f"ReplicatedReplacingMergeTree({PATH}, ver, is_deleted){TAIL}", R, "ver", None, "is_deleted"),
    Case("ReplicatedReplacingMergeTree('/clickhouse/{shard}/t(1),x', '{replica}', ver, is_deleted)" + TAIL,
         R, "ver", None, "is_deleted"),
    Case("ReplicatedReplacingMergeTree('/a\\'b/(,)', 'r\\\\1', ver)" + TAIL, R, "ver"),
    Case("ReplicatedReplacingMergeTree('/a''b', '{replica}', ver)" + TAIL, R, "ver"),
    Case("ReplicatedReplacingMergeTree('/clickhouse/tables/{layer}-{shard}/hits', '{replica}', ver)"
         " PARTITION BY toYYYYMM(ts) ORDER BY (id, intHash32(id)) SAMPLE BY intHash32(id)"
         " SETTINGS index_granularity = 8192",
         R, "ver", partition="toYYYYMM(ts)", order="(id, intHash32(id))"),
    Case("ReplicatedReplacingMergeTree(ver)" + TAIL, R, "ver"),
    Case("ReplicatedReplacingMergeTree" + TAIL, R),
    Case("ReplicatedReplacingMergeTree(ver, is_deleted)" + TAIL, R, "ver", None, "is_deleted"),
    Case("ReplicatedReplacingMergeTree('/only/path', ver)" + TAIL, R, "ver"),
    Case("ReplicatedReplacingMergeTree('/clickhouse/ORDER BY x SETTINGS y = 1', '{replica}', ver)" + TAIL, R, "ver"),
    # Shared
    Case(f"SharedReplacingMergeTree({PATH}, ver, is_deleted){TAIL}", R, "ver", None, "is_deleted"),
    Case(f"SharedReplacingMergeTree({PATH}){TAIL}", R),
    Case("SharedReplacingMergeTree('/clickhouse/tables/{uuid}/{shard}', '{replica}', _peerdb_version)"
         " PRIMARY KEY (id) ORDER BY (id) SETTINGS index_granularity = 8192",
         R, "_peerdb_version", order="(id)"),
    Case("SharedMergeTree('/clickhouse/tables/{uuid}/{shard}', '{replica}')" + TAIL, M),
    Case(f"SharedCollapsingMergeTree({PATH}, sign){TAIL}", C, "_version", "sign", columns=COLUMNS),
    Case(f"SharedVersionedCollapsingMergeTree({PATH}, sign, ver){TAIL}", V, "ver", "sign", columns=COLUMNS),
    # CollapsingMergeTree
    Case("CollapsingMergeTree(sign)" + TAIL, C, None, "sign", columns=(Column("id", "Int64"), Column("sign", "Int8"))),
    Case("CollapsingMergeTree(_sign)" + TAIL, C, "_version", "_sign", columns=COLUMNS),
    Case(f"ReplicatedCollapsingMergeTree({PATH}, _sign){TAIL}", C, "_version", "_sign", columns=COLUMNS),
    Case("ReplicatedCollapsingMergeTree(sign)" + TAIL, C, "_version", "sign", columns=COLUMNS),
    # VersionedCollapsingMergeTree
    Case("VersionedCollapsingMergeTree(sign, ver)" + TAIL, V, "ver", "sign", columns=COLUMNS),
    Case("VersionedCollapsingMergeTree(sign, version) PARTITION BY id % 16 ORDER BY id",
         V, "version", "sign", partition="id % 16", columns=COLUMNS),
    Case(f"ReplicatedVersionedCollapsingMergeTree({PATH}, sign, ver){TAIL}", V, "ver", "sign", columns=COLUMNS),
    Case("ReplicatedVersionedCollapsingMergeTree(_sign, _version)" + TAIL, V, "_version", "_sign", columns=COLUMNS),
    # MergeTree
    Case("MergeTree" + TAIL, M),
    Case("MergeTree()" + TAIL, M),
    Case("MergeTree ORDER BY tuple() SETTINGS index_granularity = 8192", M, order="tuple()"),
    Case("MergeTree ORDER BY tuple(id DESC) SETTINGS index_granularity = 8192", M, order="tuple(id DESC)"),
    Case("MergeTree" + TAIL, M, "_version", "_sign", columns=COLUMNS),
    Case(f"ReplicatedMergeTree({PATH}){TAIL}", M),
    Case("ReplicatedMergeTree('/clickhouse/tables/a/b', 'r1')" + TAIL, M),
    Case("ReplicatedMergeTree" + TAIL, M),
    # clauses that could be taken for others
    Case("ReplacingMergeTree(ver) PARTITION BY (id % 8, toYYYYMM(ts)) PRIMARY KEY id ORDER BY (id, toDate(ts))"
         " TTL ts + toIntervalMonth(1), ts + toIntervalDay(5) DELETE WHERE id = 1 SETTINGS index_granularity = 1024,"
         " non_replicated_deduplication_window = 100",
         R, "ver", partition="(id % 8, toYYYYMM(ts))", order="(id, toDate(ts))",
         ttl="ts + toIntervalMonth(1), ts + toIntervalDay(5) DELETE WHERE id = 1",
         settings={"index_granularity": "1024", "non_replicated_deduplication_window": "100"}),
    Case("ReplacingMergeTree(ver) ORDER BY id TTL ts + toIntervalMonth(1) RECOMPRESS CODEC(ZSTD(3)) SETTINGS x = 1",
         R, "ver", ttl="ts + toIntervalMonth(1) RECOMPRESS CODEC(ZSTD(3))", settings={"x": "1"}),
    Case("ReplacingMergeTree(ver) ORDER BY id TTL ts + toIntervalWeek(1) TO VOLUME 'cold, (slow)', ts + toIntervalYear(1)"
         " SETTINGS storage_policy = 'hot, cold', index_granularity = 8192",
         R, "ver", ttl="ts + toIntervalWeek(1) TO VOLUME 'cold, (slow)', ts + toIntervalYear(1)",
         settings={"storage_policy": "hot, cold", "index_granularity": "8192"}),
    Case("MergeTree ORDER BY id TTL ts + toIntervalDay(1) GROUP BY id SET amount = max(amount) SETTINGS x = 1", M,
         ttl="ts + toIntervalDay(1) GROUP BY id SET amount = max(amount)"),
    Case("ReplacingMergeTree(ver) ORDER BY ttl SETTINGS index_granularity = 8192", R, "ver", order="ttl"),
    Case("ReplacingMergeTree(SETTINGS) ORDER BY (id, SETTINGS) SETTINGS index_granularity = 8192", R, "SETTINGS",
         order="(id, SETTINGS)"),
    Case("ReplacingMergeTree(ver) ORDER BY settings TTL ts SETTINGS x = 1", R, "ver", order="settings", ttl="ts"),
    Case("ReplacingMergeTree(ver) ORDER BY id + ttl TTL ts", R, "ver", order="id + ttl", ttl="ts"),
    Case("ReplacingMergeTree(ver) PARTITION BY concat('ORDER BY ', toString(id), ')') ORDER BY id", R, "ver",
         partition="concat('ORDER BY ', toString(id), ')')"),
    Case("ReplacingMergeTree(ver) PARTITION BY [id][1] ORDER BY (id, `order by`)", R, "ver", partition="[id][1]",
         order="(id, `order by`)"),
    Case("ReplacingMergeTree(ver) ORDER BY id SETTINGS disk = disk(type = s3, endpoint = 'https://h/b/?a=(1,2)'),"
         " min_bytes_for_wide_part = 0",
         R, "ver",
         settings={"disk": "disk(type = s3, endpoint = 'https://h/b/?a=(1,2)')", "min_bytes_for_wide_part": "0"}),
    Case("ReplacingMergeTree(ver) ORDER BY id SETTINGS index_granularity = 8192, ratio = -0.5, allow_nullable_key = true,"
         " deduplicate_merge_projection_mode = 'rebuild'",
         R, "ver",
         settings={"index_granularity": "8192", "ratio": "-0.5", "allow_nullable_key": "true",
                   "deduplicate_merge_projection_mode": "rebuild"}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.text[:90])
def test_engine_clause(case: Case) -> None:
    name = case.text.split("(")[0].split()[0]
    clause = parse_engine(name, case.text)
    engine = to_engine(clause, case.columns)
    assert (engine.family, engine.version_column, engine.sign_column, engine.is_deleted_column) == (
        case.family,
        case.version,
        case.sign,
        case.is_deleted,
    )
    assert (clause.partition_by, clause.order_by, clause.ttl) == (case.partition, case.order, case.ttl)
    assert engine.replicated == name.startswith("Replicated")
    assert engine.shared == name.startswith("Shared")
    if case.settings is not None:
        assert dict(clause.settings) == case.settings


REFUSED = {
    "View": ("", "view"), "MaterializedView": ("", "materialized view"), "LiveView": ("", "view"),
    "Buffer": ("Buffer('t', 'x', 16, 10, 100, 10000, 1000000, 10000000, 100000000)", "memory"),
    "Null": ("`Null`", "stores nothing"), "Kafka": ("Kafka SETTINGS a = 1", "topic"),
    "Merge": ("Merge('t', 'x')", "several"),
    "Memory": ("Memory", "neither versions"), "Log": ("Log", "neither versions"),
    "URL": ("URL('http://a/b?c=(1,2)', 'CSV')", "neither versions"),
    "MySQL": ("MySQL('h:3306', 'd', 't', 'u', '[HIDDEN]')", "neither versions"),
    "EmbeddedRocksDB": ("EmbeddedRocksDB PRIMARY KEY k", "neither versions"),
    "SystemTables": ("SystemTables", "neither versions"), "BrandNewEngine": ("BrandNewEngine(1)", "neither versions"),
    "SummingMergeTree": ("SummingMergeTree(s) ORDER BY k", "adding"),
    "ReplicatedAggregatingMergeTree": (f"ReplicatedAggregatingMergeTree({PATH}) ORDER BY k", "adding"),
    "SharedSummingMergeTree": (f"SharedSummingMergeTree({PATH}, (a, b)) ORDER BY k", "adding"),
    "ReplicatedGraphiteMergeTree": (f"ReplicatedGraphiteMergeTree({PATH}, 'graphite_rollup') ORDER BY k", "adding"),
    "BrandNewMergeTree": ("BrandNewMergeTree(1) ORDER BY k", "unknown to the sink"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_other_engines_are_refused_by_name_with_reason_and_remedy(name: str) -> None:
    text, reason = REFUSED[name]
    with pytest.raises(TableError, match=name) as caught:
        to_engine(parse_engine(name, text), COLUMNS, table="`d`.`x`")
    assert reason in str(caught.value)
    assert "`d`.`x`" in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "over"),
    [
        ("Distributed('c', 'd', 't')", DistributedOver("c", "d", "t")),
        ("Distributed('c', 'd', 't', rand())", DistributedOver("c", "d", "t", "rand()")),
        ("Distributed(c, d, t, cityHash64(id, 'a,b'))", DistributedOver("c", "d", "t", "cityHash64(id, 'a,b')")),
        ("Distributed('{cluster}', 'd', 't', id, 'hot')", DistributedOver("{cluster}", "d", "t", "id")),
        ("Distributed('c', '', 't', id) SETTINGS fsync_after_insert = 1", DistributedOver("c", "", "t", "id")),
        ("Distributed('c,(1)', `d b`, 't''x')", DistributedOver("c,(1)", "d b", "t'x")),
    ],
)
def test_distributed_names_its_local_table(text: str, over: DistributedOver) -> None:
    assert distributed_over(parse_engine("Distributed", text)) == over


def test_distributed_over_a_table_function_is_refused() -> None:
    with pytest.raises(TableError, match="one local table"):
        distributed_over(parse_engine("Distributed", "Distributed('c', view(SELECT 1))"))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("ReplacingMergeTree(ver, is_deleted, id) ORDER BY id", "known form"),
        ("CollapsingMergeTree ORDER BY id", "known form"),
        ("VersionedCollapsingMergeTree(sign) ORDER BY id", "known form"),
        ("ReplacingMergeTree(nothing) ORDER BY id", "does not exist"),
        ("ReplacingMergeTree(amount) ORDER BY id", "Nullable"),
        ("CollapsingMergeTree(ver) ORDER BY id", "must be Int8"),
        ("ReplacingMergeTree(ver, sign) ORDER BY id", "must be UInt8"),
        ("ReplacingMergeTree(ver ORDER BY id", "missing"),
        ("ReplacingMergeTree(ver)) ORDER BY id", "unbalanced"),
        ("ReplacingMergeTree('abc) ORDER BY id", "cannot read"),
        ("ReplacingMergeTree(ver) garbage ORDER BY id", "garbage"),
        ("ReplacingMergeTree(ver) ORDER BY id UNIQUE KEY id", "UNIQUE KEY"),
        ("MergeTree(EventDate, (CounterID, EventDate), 8192)", "deprecated form"),
        ("ReplicatedCollapsingMergeTree('/p', 'r', StartDate, (id, StartDate), 8192, sign)", "deprecated form"),
    ],
)
def test_clauses_that_make_no_sense_are_errors_that_say_why(text: str, part: str) -> None:
    name = text.split("(")[0].split()[0]
    with pytest.raises(TableError, match=part):
        to_engine(parse_engine(name, text), COLUMNS)


def test_the_engines_name_must_agree() -> None:
    with pytest.raises(TableError, match="names 'MergeTree'"):
        parse_engine("ReplacingMergeTree", "MergeTree ORDER BY id")


def test_a_configured_sign_column_is_taken() -> None:
    clause = parse_engine("ReplacingMergeTree", "ReplacingMergeTree(ver) ORDER BY id")
    columns = (*FEW, Column("mark", "Int8"))
    assert to_engine(clause, columns, sign_column="mark").sign_column == "mark"
    with pytest.raises(TableError, match="must be Int8"):
        to_engine(clause, columns, sign_column="deleted")


@pytest.mark.parametrize(
    "kind",
    [
        "UInt8", "UInt64", "UInt128", "UInt256", "Int32", "Int64", "Int128", "Float64", "BFloat16", "Date", "Date32", "DateTime",
        "DateTime('UTC')", "DateTime64(6, 'UTC')", "Bool", "Time", "Time64(3)", "Decimal(18, 2)", "Enum8('a' = 1)", "UUID",
        "String", "FixedString(4)", "Nullable(UInt64)", "IPv4", "IPv6", "LowCardinality(UInt64)",
    ],
)  # fmt: skip
def test_version_types_are_those_that_the_engine_takes(engine: ClickHouse, kind: str) -> None:
    engine.run("DROP TABLE IF EXISTS t.v SYNC")
    engine.run("SET allow_suspicious_low_cardinality_types = 1")
    try:
        engine.run(f"CREATE TABLE t.v (k Int64, v {kind}) ENGINE = ReplacingMergeTree(v) ORDER BY k")
        taken = True
    except RuntimeError:
        taken = False
    assert is_version_type(kind) is taken


@pytest.mark.parametrize(
    "clause",
    [
        "ReplacingMergeTree(v, d) PARTITION BY (k % 8, toYYYYMM(ts)) PRIMARY KEY k ORDER BY (k, toDate(ts)) "
        "TTL ts + INTERVAL 1 MONTH, ts + INTERVAL 5 DAY DELETE WHERE k = 1 SETTINGS non_replicated_deduplication_window = 7",
        "ReplacingMergeTree(`we ird`) ORDER BY (k, `we ird`)",
        "ReplacingMergeTree(v) ORDER BY (ttl) TTL ts + INTERVAL 1 DAY",
        "CollapsingMergeTree(s) ORDER BY k PARTITION BY concat('a,(', toString(k), '''')",
        "VersionedCollapsingMergeTree(s, v) ORDER BY k SAMPLE BY k",
        "CoalescingMergeTree((ts)) ORDER BY k",
        "MergeTree ORDER BY (k DESC, -v) SETTINGS allow_experimental_reverse_key = 1",
    ],
)
def test_what_the_engine_writes_is_understood(engine: ClickHouse, clause: str) -> None:
    engine.run("DROP TABLE IF EXISTS t.y SYNC")
    engine.run(
        "CREATE TABLE t.y (k UInt64, s Int8, v UInt64, d UInt8, ts DateTime('UTC'), `we ird` UInt32, ttl Int32) "
        f"ENGINE = {clause}"
    )
    query = (
        "SELECT engine, engine_full, partition_key, sampling_key FROM system.tables WHERE database = 't' AND name = 'y'"
    )
    row = engine.rows(query)[0]
    parsed = parse_engine(row["engine"], row["engine_full"])
    assert parsed.name == clause.split("(")[0].split()[0]
    assert parsed.partition_by == row["partition_key"]
    assert parsed.sample_by == row["sampling_key"]
    assert parsed.setting("index_granularity") == "8192"
