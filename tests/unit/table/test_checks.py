"""Findings about target tables; remedies in SQL are put to the engine."""
# ruff: noqa: E501

from typing import Any

import pytest

from ch_sink.model.policy import ChangePolicy, policy_of
from ch_sink.table.checks import Finding, check_table
from ch_sink.table.detect import DETECT_SQL, assemble
from ch_sink.table.engine_full import removing_ttl
from ch_sink.table.facts import POLICIES_SQL, SERVER_SQL, RowPolicy, ServerFacts, policies_after_final
from ch_sink.table.model import TargetTable
from tests.support.engine import Engine as ClickHouse

WINDOW = " SETTINGS non_replicated_deduplication_window = 10000"
COLUMNS = "id Int64, k Int64, ts DateTime, v Nullable(String), ver UInt64, d UInt8, sign Int8"


def make(engine: ClickHouse, clause: str, columns: str = COLUMNS, **policy: Any) -> TargetTable:
    engine.run("DROP TABLE IF EXISTS t.x SYNC")
    engine.run(f"CREATE TABLE t.x ({columns}) ENGINE = {clause}")
    return detected(engine, **policy)


def detected(engine: ClickHouse, **policy: Any) -> TargetTable:
    return assemble(engine.rows(DETECT_SQL, {"database": "t", "table": "x"})[0], policy_of(**policy))


def of(findings: list[Finding], level: str) -> dict[str, Finding]:
    return {f.title: f for f in findings if f.level == level}


def test_a_table_as_init_makes_it_is_all_ok(engine: ClickHouse) -> None:
    table = make(engine, "ReplacingMergeTree(ver, d) ORDER BY id" + WINDOW)
    findings = check_table(table, ["id"], ChangePolicy())
    assert {f.level for f in findings} == {"ok"}
    assert [f.title for f in findings] == ["engine", "version column", "sorting key", "deduplication"]


@pytest.mark.parametrize(
    ("clause", "key", "level", "title", "part"),
    [
        ("ReplacingMergeTree(ver, d) ORDER BY k", ["id"], "fail", "sorting key", "different rows"),
        ("ReplacingMergeTree(ver, d) ORDER BY toDate(id)", ["id"], "fail", "sorting key", "lacks the key column id"),
        ("ReplacingMergeTree(ver, d) ORDER BY (k, id)", ["id", "k"], "ok", "sorting key", "contains"),
        ("ReplacingMergeTree(ver, d) ORDER BY id", ["nope"], "fail", "key", "lacks the key column nope"),
        ("ReplacingMergeTree(ver, d) ORDER BY id", [], "fail", "key", "no keys"),
        ("MergeTree ORDER BY id", [], "warn", "before images", "whole before images"),
        ("ReplacingMergeTree(ver, d) ORDER BY id", ["id"], "warn", "deduplication", "until this engine has merged"),
        ("CollapsingMergeTree(sign) ORDER BY id", ["id"], "fail", "deduplication", "stored twice"),
        ("MergeTree ORDER BY id", ["id"], "fail", "deduplication", "stored twice"),
        ("ReplacingMergeTree(ver, d) ORDER BY (id, k)", ["id"], "warn", "place", "k decides"),
        ("ReplacingMergeTree(ver, d) ORDER BY id PARTITION BY k % 8", ["id"], "warn", "partition", "never merge"),
        ("CollapsingMergeTree(sign) ORDER BY id PARTITION BY k", ["id"], "warn", "partition", "old row of a key"),
        ("ReplacingMergeTree(ver, d) ORDER BY id TTL ts + INTERVAL 1 YEAR", ["id"], "warn", "TTL", "differs from"),
        ("ReplacingMergeTree(ver, d) ORDER BY id TTL ts DELETE WHERE d = 1", ["id"], "warn", "TTL", "brings the row back"),
        ("ReplacingMergeTree(ts, d) ORDER BY id", ["id"], "warn", "version column", "orders by source time"),
        ("ReplacingMergeTree(ts, d) ORDER BY (id, k)", ["id"], "fail", "version column", "k outside the key"),
        ("ReplacingMergeTree(ts, d) ORDER BY id PARTITION BY k % 8", ["id"], "fail", "version column", "k outside the key"),
        ("ReplacingMergeTree(d) ORDER BY id", ["id"], "fail", "version column", "UInt8"),
        ("VersionedCollapsingMergeTree(sign, ts) ORDER BY id", ["id"], "fail", "version column", "tie"),
        (
            "ReplacingMergeTree(ver, d) ORDER BY id SETTINGS allow_experimental_replacing_merge_with_cleanup = 1",
            ["id"], "warn", "cleanup", "older event",
        ),
    ],
)  # fmt: skip
def test_findings(engine: ClickHouse, clause: str, key: list[str], level: str, title: str, part: str) -> None:
    found = [f for f in check_table(make(engine, clause), key, ChangePolicy()) if f.level == level and f.title == title]
    assert any(part in f.detail for f in found), found


def test_remedies_of_a_doubtful_table_mend_it(engine: ClickHouse) -> None:
    columns = "id Int64, ver UInt64"
    table = make(
        engine,
        "ReplacingMergeTree(ver) ORDER BY id SETTINGS enable_replacing_merge_with_cleanup_for_min_age_to_force_merge = 1",
        columns,
    )
    findings = check_table(table, ["id"], ChangePolicy())
    assert {"deletes"} == set(of(findings, "fail"))
    for finding in findings:
        if finding.remedy and "ALTER" in finding.remedy:
            for statement in filter(None, finding.remedy.split(";")):
                engine.run(statement)
    mended = check_table(detected(engine), ["id"], ChangePolicy())
    assert {f.level for f in mended} == {"ok"}, mended


def test_a_mark_that_the_engine_does_not_know_is_given_to_it(engine: ClickHouse) -> None:
    """As PeerDB makes tables: the parts are the same, and so are keys, TTL and what nullable keys need."""
    clauses = "PARTITION BY k % 2 PRIMARY KEY id ORDER BY (id, v) TTL ts + toIntervalYear(90)"
    columns = "id Int64, k Int64, ts DateTime, v Nullable(String), _peerdb_is_deleted UInt8, _peerdb_version UInt64"
    table = make(engine, f"ReplacingMergeTree(_peerdb_version) {clauses} SETTINGS allow_nullable_key = 1", columns)
    engine.run("INSERT INTO t.x SELECT number % 5, 0, now(), 'a', number >= 5, number FROM numbers(7)")
    finding = of(check_table(table, ["id"], ChangePolicy()), "fail")["deletes"]
    assert "does not know that _peerdb_is_deleted marks deleted rows" in finding.detail
    for statement in (finding.remedy or "").split("\n"):
        engine.run(statement)
    now = detected(engine)
    assert str(now.engine) == "ReplacingMergeTree(_peerdb_version, _peerdb_is_deleted)"
    same = ("columns", "sorting_key", "partition_key", "ttl")
    assert [getattr(now, name) for name in same] == [getattr(table, name) for name in same]
    assert engine.rows("SELECT id FROM t.x FINAL ORDER BY id") == [{"id": 2}, {"id": 3}, {"id": 4}]
    assert engine.rows("SELECT count() AS n FROM t.x_before FINAL") == [{"n": 5}]
    assert "deletes" not in of(check_table(now, ["id"], ChangePolicy()), "fail")
    engine.run("DROP TABLE t.x_before SYNC")


def test_a_mark_that_no_engine_takes_needs_another_table(engine: ClickHouse) -> None:
    """As ClickPipes' documentation shows it. A `_sign` of 1 for all rows would show those that it marks as deleted."""
    columns = "id Int64, _peerdb_is_deleted Int8, _peerdb_version Int64"
    table = make(engine, "ReplacingMergeTree(_peerdb_version) ORDER BY id", columns)
    finding = of(check_table(table, ["id"], ChangePolicy(deletes="ignore")), "fail")["deletes"]
    assert "a mark of the type Int8 is none that an engine takes" in finding.detail
    assert "new table" in (finding.remedy or "")


@pytest.mark.parametrize("moves", ["RECOMPRESS CODEC(ZSTD(9))", "TO VOLUME 'cold'", "TO DISK 'cold' IF EXISTS"])
def test_a_ttl_that_moves_rows_removes_none(moves: str) -> None:
    assert removing_ttl(f"ts + toIntervalDay(1) {moves}") == ""
    assert removing_ttl(f"ts + toIntervalDay(1) {moves}, ts + toIntervalDay(9)") == "ts + toIntervalDay(9)"


@pytest.mark.parametrize(
    "ttl", ["d", "d DELETE WHERE `TO DISK` = 1", "to(d)", "d GROUP BY id SET v = max(v)", "if(a = 'TO DISK', b, c)"]
)
def test_other_elements_of_a_ttl_remove_rows(ttl: str) -> None:
    assert removing_ttl(ttl) == ttl


def test_a_sorting_column_that_no_event_states_is_named(engine: ClickHouse) -> None:
    columns = "id Int64, _peerdb_source_schema LowCardinality(String), ver UInt64, d UInt8"
    table = make(engine, "ReplacingMergeTree(ver, d) ORDER BY (_peerdb_source_schema, id)", columns)
    [finding] = [f for f in check_table(table, ["id"], ChangePolicy(), source_columns=["id"]) if "no event" in f.detail]
    assert (finding.title, finding.remedy) == ("sorting key", "columns:\n  add:\n    _peerdb_source_schema: \"'…'\"")


def test_ignored_deletes_are_a_warning(engine: ClickHouse) -> None:
    table = make(engine, "ReplacingMergeTree(ver) ORDER BY id" + WINDOW, "id Int64, ver UInt64")
    assert "deletes" in of(check_table(table, ["id"], ChangePolicy(deletes="ignore")), "warn")


def test_a_nullable_key_and_names_that_differ_by_case(engine: ClickHouse) -> None:
    clause = "ReplacingMergeTree(ver) ORDER BY id SETTINGS allow_nullable_key = 1"
    table = make(engine, clause, "id Nullable(Int64), ID Int64, ver UInt64, sign Int8")
    warnings = of(check_table(table, ["id"], ChangePolicy()), "warn")
    assert "can be null" in warnings["key"].detail
    assert "letter case" in warnings["columns"].detail


def test_a_version_column_that_the_source_has_too(engine: ClickHouse) -> None:
    table = make(engine, "ReplacingMergeTree(ver, d) ORDER BY id" + WINDOW)
    found = of(check_table(table, ["id"], ChangePolicy(), source_columns=["id", "ver"]), "fail")
    assert "stops at the first event" in found["version column"].detail
    ignored = ChangePolicy(evolve="ignore")
    found = of(check_table(table, ["id"], ignored, source_columns=["id", "ver"]), "warn")
    assert "values are left out" in found["version column"].detail


@pytest.mark.parametrize(
    ("clause", "taken"),
    [("ReplacingMergeTree(ver, d) ORDER BY id", "d"), ("CollapsingMergeTree(sign) ORDER BY id", "sign")],
)
def test_a_mark_of_deletes_that_the_source_has_too(engine: ClickHouse, clause: str, taken: str) -> None:
    table = make(engine, clause + WINDOW)
    found = check_table(table, ["id"], ChangePolicy(), source_columns=["id", "k", taken])
    assert [f.level for f in found if f.detail.startswith(f"{taken} is also a column of the source")] == ["fail"]
    assert not [
        f for f in check_table(table, ["id"], ChangePolicy(), source_columns=["id", "k"]) if "is also" in f.detail
    ]


def test_the_window_must_hold_two_batches(engine: ClickHouse) -> None:
    table = make(engine, "CollapsingMergeTree(sign) ORDER BY id SETTINGS non_replicated_deduplication_window = 500")
    assert of(check_table(table, ["id"], ChangePolicy(), inserts_per_batch=200), "warn") == {}
    warned = of(check_table(table, ["id"], ChangePolicy(), inserts_per_batch=8_000), "warn")["deduplication"]
    assert "= 16000" in (warned.remedy or "")


@pytest.mark.parametrize(
    ("after_final", "level", "part"), [(False, "fail", "see deleted rows again"), (True, "ok", "without FINAL")]
)
def test_row_policies_under_final(engine: ClickHouse, after_final: bool, level: str, part: str) -> None:
    table = make(engine, "ReplacingMergeTree(ver, d) ORDER BY id" + WINDOW)
    policy = RowPolicy("p", "d = 0", users=("reader",))
    facts = ServerFacts("26.1.2.1", "sink", after_final, (policy,))
    assert part in of(check_table(table, ["id"], ChangePolicy(), server=facts), level)["row policy"].detail


@pytest.mark.parametrize(
    ("version", "setting", "moved", "after"),
    [
        ("24.8.4.1", None, "0", True),
        ("25.8.2.1", None, "0", True),
        ("25.8.2.1", None, "1", False),
        ("25.8.15.10001.altinitystable", None, "0", False),
        ("25.9.4.58", None, "0", False),
        ("25.11.2.24", None, "0", False),
        ("26.1.2.1", "0", "0", False),
        ("26.1.2.1", "1", "1", True),
        ("26.3.9.1", "1", "0", True),
        ("26.9.2.1", "0", "0", False),
    ],
)
def test_which_servers_apply_policies_after_final(version: str, setting: str | None, moved: str, after: bool) -> None:
    known = {"apply_row_policy_after_final": setting} if setting is not None else {}
    assert policies_after_final(version, {"optimize_move_to_prewhere_if_final": moved, **known}) is after


def test_a_policy_on_source_columns_is_none_of_our_business(engine: ClickHouse) -> None:
    table = make(engine, "ReplacingMergeTree(ver, d) ORDER BY id" + WINDOW)
    facts = ServerFacts("26.1.2.1", "sink", False, (RowPolicy("p", "k = 1", users=("reader",)),))
    assert {f.level for f in check_table(table, ["id"], ChangePolicy(), server=facts)} == {"ok"}


def test_a_policy_must_spare_the_sinks_own_user(engine: ClickHouse) -> None:
    table = make(engine, "ReplacingMergeTree(ver, d) ORDER BY id" + WINDOW)
    for spared, level in (((), "fail"), (("sink",), "ok")):
        facts = ServerFacts("26.9", "sink", True, (RowPolicy("p", "d = 0", True, spared=spared),))
        findings = check_table(table, ["id"], ChangePolicy(), server=facts)
        assert {f.level for f in findings if f.title == "row policy"} >= {level}
        assert ("fail" in {f.level for f in findings}) is (level == "fail")


def test_the_engine_answers_the_servers_query(engine: ClickHouse) -> None:
    row = engine.rows(SERVER_SQL)[0]
    facts = ServerFacts.from_rows(row, None)
    assert facts.version.split(".")[0].isdigit()
    assert facts.policies_after_final
    assert facts.timezone
    assert facts.policies is None
    assert ServerFacts.from_rows(row, []).policies == ()
    engine.run(f"EXPLAIN AST {POLICIES_SQL}", {"database": "t", "table": "x"})
