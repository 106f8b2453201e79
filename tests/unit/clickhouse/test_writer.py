"""Inserts: once, as one block, whatever breaks in between."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pyarrow as pa
import pytest

from ch_sink.clickhouse import EVERY_TYPE, ClickHouseSettings, ClickHouseWriter, Client, Retry, detect
from ch_sink.clickhouse.writer import PINNED
from ch_sink.errors import ClickHouseError, ClickHouseUnavailable, TableError
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.model.policy import policy_of
from ch_sink.ports import Fence, Insert
from ch_sink.table.model import TargetTable
from ch_sink.types.arrow import arrow_type
from tests.support.endpoint import Fenced, on_engines, settings_for
from tests.support.proxy import FaultyProxy

UUID, NO_UUID = "61f0c404-5cb3-11e7-907b-a6006ad3dba0", "00000000-0000-0000-0000-000000000000"


@pytest.fixture
def table(client: Client, database: str) -> TargetTable:
    client.command(
        f"CREATE TABLE {database}.t (id UInt64, p UInt16, v String DEFAULT 'dflt', d String MATERIALIZED 'm', "
        "_version UInt64, _is_deleted UInt8) ENGINE = ReplacingMergeTree(_version, _is_deleted) "
        "PARTITION BY p ORDER BY id SETTINGS non_replicated_deduplication_window = 1000"
    )
    client.command(f"SYSTEM STOP MERGES {database}.t")
    return detect(client, database, "t", policy_of())


@pytest.fixture
def proxy(clickhouse: EmbeddedClickHouse) -> Iterator[FaultyProxy]:
    with FaultyProxy(clickhouse.url) as made:
        yield made


def block(n: int, *, start: int = 0, partitions: int = 1, **more: Any) -> pa.Table:
    ids = np.arange(start, start + n, dtype=np.uint64)
    columns: dict[str, Any] = {
        "id": ids,
        "p": (ids % partitions).astype(np.uint16),
        "_version": np.ones(n, dtype=np.uint64),
        "_is_deleted": np.zeros(n, dtype=np.uint8),
    }
    return pa.table({**columns, **more})


def count(client: Client, table: TargetTable) -> int:
    return int(client.rows(f"SELECT count() AS n FROM {table.qualified}")[0]["n"])


def parts(client: Client, table: TargetTable) -> int:
    sql = "SELECT count() AS n FROM system.parts WHERE active AND database = {d:String} AND table = {t:String}"
    return int(client.rows(sql, {"d": table.database, "t": table.name})[0]["n"])


def test_every_pinned_setting_exists_on_this_engine(client: Client) -> None:
    assert [name for name in PINNED if not client.knows_setting(name)] == []


def test_rows_are_reported_and_defaults_filled(client: Client, table: TargetTable) -> None:
    assert ClickHouseWriter(client, table).write(Insert(block(3), "p"), "a") == 3
    assert client.rows(f"SELECT DISTINCT v, d FROM {table.qualified}") == [{"v": "dflt", "d": "m"}]


def test_a_null_in_a_column_that_is_not_nullable_takes_the_default(client: Client, table: TargetTable) -> None:
    rows = block(2, v=pa.array([None, b"x"], pa.binary()))
    ClickHouseWriter(client, table).write(Insert(rows, "p"), "a")
    assert [r["v"] for r in client.rows(f"SELECT v FROM {table.qualified} ORDER BY id")] == ["dflt", "x"]


@on_engines("", "25.8", long=["26.3"])
@pytest.mark.parametrize("fence", [None, Fenced()], ids=["plain", "fenced"])
def test_a_null_that_travels_as_text_takes_the_default(client: Client, database: str, fence: Fence | None) -> None:
    columns = {
        "u": ("UUID", NO_UUID),
        "d": (f"UUID DEFAULT '{UUID}'", UUID),
        "n": (f"Nullable(UUID) DEFAULT '{UUID}'", None),
        "t": ("Time64(3) DEFAULT '01:00:00'", "01:00:00.000"),
        "e": ("LowCardinality(Nullable(String))", None),
        "j": ("""JSON DEFAULT '{"a":1}'""", '{"a":1}'),
        "a": ("Array(UUID)", "[]"),
        "p": ("Tuple(x UUID, y Nullable(UUID))", f"('{NO_UUID}',NULL)"),
    }
    made = ", ".join(f"{name} {kind}" for name, (kind, _) in columns.items())
    create = f"CREATE TABLE {database}.t (id UInt64, {made}, _version UInt64) ENGINE = ReplacingMergeTree(_version)"
    client.command(f"{create} ORDER BY id", settings=EVERY_TYPE)
    table = detect(client, database, "t", policy_of())
    nulls = {c.name: pa.nulls(1, arrow_type(c.type)) for c in table.columns if c.name in columns}
    rows = pa.table({"id": pa.array([1], pa.uint64()), **nulls, "_version": pa.array([1], pa.uint64())})
    ClickHouseWriter(client, table).write(Insert(rows, "p"), "a", fence=fence)
    shown = ", ".join(f"toString({name}) AS {name}_" for name in columns)
    [found] = client.rows(f"SELECT {shown} FROM {table.qualified}")
    assert {name: found[f"{name}_"] for name in columns} == {name: text for name, (_, text) in columns.items()}


@on_engines("", "25.8")
@pytest.mark.parametrize("fence", [None, Fenced()], ids=["plain", "fenced"])
def test_a_null_becomes_the_default_of_its_type(client: Client, database: str, fence: Fence | None) -> None:
    """Of a plain insert the server makes the number 0, which no format can show if an Enum lacks it."""
    columns = {
        "e": ("Enum8('new' = 2, 'old' = 1)", [2, None], ["new", "old"]),
        "zero": ("Enum16('a' = -1, 'b' = 0)", [0, None], ["b", "a"]),
        "stated": ("Enum8('new' = 2, 'old' = 1) DEFAULT 'new'", [1, None], ["old", "new"]),
        "may": ("Nullable(Enum8('new' = 2, 'old' = 1))", [1, None], ["old", None]),
        "list": ("Array(Enum8('new' = 2, 'old' = 1))", [[2, None], []], [["new", "old"], []]),
        "named": ("Map(String, Enum8('new' = 2))", [[("k", None)], []], [{"k": "new"}, {}]),
        "day": ("Date32", [1, None], ["1970-01-02", "1900-01-01"]),
        "stated_day": ("Date32 DEFAULT '2000-01-01'", [1, None], ["1970-01-02", "2000-01-01"]),
        "days": ("Array(Date32)", [[1, None], []], [["1970-01-02", "1970-01-01"], []]),
        "computed": ("Enum8('new' = 2, 'old' = 1) DEFAULT if(id = 1, 'new', 'old')", [2, None], ["new", "new"]),
        "next_day": ("Date32 DEFAULT toDate32('2000-01-01') + id", [1, None], ["1970-01-02", "2000-01-02"]),
        "both": (
            "Tuple(a Enum8('new' = 2), b String)",
            [{"a": None, "b": b"x"}, None],
            [{"a": "new", "b": "x"}, {"a": "new", "b": ""}],
        ),
    }
    fields = ", ".join(f"{name} {kind}" for name, (kind, _, _) in columns.items())
    client.command(f"CREATE TABLE {database}.e (id UInt64, {fields}) ENGINE = MergeTree ORDER BY id")
    target = detect(client, database, "e", policy_of())
    types = {c.name: arrow_type(c.type) for c in target.columns}
    sent = {name: pa.array(values, types[name]) for name, (_, values, _) in columns.items()}
    rows = pa.table({"id": pa.array([0, 1], pa.uint64()), **sent})
    ClickHouseWriter(client, target).write(Insert(rows, "p"), "t", fence=fence)
    for name, (_, _, wanted) in columns.items():
        got = client.rows(f"SELECT toJSONString(tuple({name})) AS j FROM {target.qualified} ORDER BY id")
        assert [json.loads(str(row["j"]))[0] for row in got] == wanted, name


@on_engines("", "25.8")
def test_texts_in_json_stay_texts(client: Client, database: str) -> None:
    """The server would store what looks like a time as one: another text, and another day for the last but one."""
    texts = ["2024-05-01 12:30:45.123", "2024/01/02", "2024-1-2", "1900-01-01", "2024-02-30", "7"]
    client.command(
        f"CREATE TABLE {database}.t (id UInt64, j JSON, _version UInt64) ENGINE = ReplacingMergeTree(_version) "
        "ORDER BY id",
        settings=EVERY_TYPE,
    )
    values = [f'{{"a":"{text}"}}'.encode() for text in texts]
    ids = pa.array(range(len(texts)), pa.uint64())
    rows = pa.table({"id": ids, "j": pa.array(values, pa.binary()), "_version": ids})
    ClickHouseWriter(client, detect(client, database, "t", policy_of())).write(Insert(rows, "p"), "a")
    found = client.rows(f"SELECT j.a.:String AS a FROM {database}.t ORDER BY id")
    assert [row["a"] for row in found] == texts


def test_columns_go_by_name_in_any_order_and_chunks(client: Client, table: TargetTable) -> None:
    rows = block(4, v=pa.array([b"a", b"b", b"c", b"d"], pa.binary()))
    shuffled = pa.concat_tables([rows.slice(0, 1), rows.slice(1, 3)]).select(
        ["v", "_is_deleted", "p", "_version", "id"]
    )
    ClickHouseWriter(client, table).write(Insert(shuffled, "p"), "a")
    assert [r["v"] for r in client.rows(f"SELECT v FROM {table.qualified} ORDER BY id")] == ["a", "b", "c", "d"]
    assert parts(client, table) == 1


@pytest.mark.parametrize("name", ["d", "nope"])
def test_a_column_that_cannot_be_inserted_is_named(client: Client, table: TargetTable, name: str) -> None:
    with pytest.raises(TableError, match=f"'{name}'"):
        ClickHouseWriter(client, table).write(Insert(block(1, **{name: pa.array([b"x"])}), "p"), "a")


def test_no_rows_are_no_request(client: Client, table: TargetTable) -> None:
    assert ClickHouseWriter(client, table).write(Insert(block(0), "p"), "a") == 0
    assert count(client, table) == 0


@pytest.mark.parametrize("compression", ["lz4", "zstd", "none"])
def test_every_compression_arrives(clickhouse: EmbeddedClickHouse, table: TargetTable, compression: Any) -> None:
    one = Client(settings_for(clickhouse.url, compression=compression))
    ClickHouseWriter(one, table).write(Insert(block(1000, v=pa.array([b"\xff\x00x" * 9] * 1000)), "p"), "a")
    assert one.rows(f"SELECT count() AS n, any(hex(v)) AS v FROM {table.qualified}") == [{"n": 1000, "v": "FF0078" * 9}]
    one.close()


HOSTILE = (
    ("max_insert_block_size", "1000"),
    ("min_insert_block_size_rows", "1000"),
    ("min_insert_block_size_bytes", "1000"),
    ("max_block_size", "1000"),
    ("use_strict_insert_block_limits", "1"),
    ("async_insert", "1"),
    ("max_insert_threads", "4"),
    ("max_partitions_per_insert_block", "1"),
    ("insert_deduplicate", "0"),
)


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("profile", [(), HOSTILE], ids=["server defaults", "settings that would cut blocks"])
def test_two_million_rows_stay_one_part(clickhouse: EmbeddedClickHouse, table: TargetTable, profile: Any) -> None:
    one = Client(settings_for(clickhouse.url, settings=profile))
    ClickHouseWriter(one, table).write(Insert(block(2_000_000), "p"), "a")
    assert (count(one, table), parts(one, table)) == (2_000_000, 1)
    one.close()


def test_settings_of_the_user_do_not_cut_blocks_or_switch_tokens_off(
    clickhouse: EmbeddedClickHouse, table: TargetTable
) -> None:
    one = Client(settings_for(clickhouse.url, settings=HOSTILE))
    for _ in range(2):
        ClickHouseWriter(one, table).write(Insert(block(20_000, partitions=3), "*"), "a")
    assert (count(one, table), parts(one, table)) == (20_000, 3)
    one.close()


@pytest.mark.parametrize("rows", [5, 200_000], ids=["small", "of megabytes"])
def test_the_statement_carries_the_settings_and_the_token(
    client: Client, table: TargetTable, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The HTTP library takes most of a millisecond for a URL that has them: as long as a small insert's other work."""
    pool = client._driver._backend.http
    send, urls = pool.urlopen, list[str]()

    def noted(method: str, url: str, **more: Any) -> Any:
        urls.append(url)
        return send(method, url, **more)

    monkeypatch.setattr(pool, "urlopen", noted)
    text = np.random.default_rng(7).bytes(8 * rows)  # does not shrink
    words = pa.array([text[n : n + 8] for n in range(0, len(text), 8)])
    for _ in range(2):
        ClickHouseWriter(client, table).write(Insert(block(rows, v=words), "p"), "a/'b'", by_content=True)
    for url in urls:
        parameters = parse_qs(urlsplit(url).query)
        assert not {*PINNED, "insert_deduplication_token"} & parameters.keys()
        assert ("query" in parameters) == (rows > 5), "what is small goes before the rows"
        assert rows > 5 or len(url) < 500
    assert len(urls) == 2
    assert count(client, table) == rows


def test_settings_that_the_user_may_not_change_are_left_out(client: Client) -> None:
    """Others would make the server refuse the insert."""
    own = Client(settings_for(client.settings.url))
    fixed = own._driver.server_settings["max_insert_threads"]
    own._driver.server_settings["max_insert_threads"] = fixed._replace(value="0", readonly=1)
    clause = own._clause({**PINNED, "insert_deduplication_token": "a", "no_such_setting": 1})
    assert "max_insert_threads" not in clause
    assert "no_such_setting" not in clause
    assert clause.startswith("SETTINGS async_insert = 0, ")
    assert clause.endswith(", insert_deduplication_token = 'a'")
    own.close()


def test_a_repeated_token_stores_nothing_and_another_stores_again(client: Client, table: TargetTable) -> None:
    writer = ClickHouseWriter(client, table)
    for token in ("a", "a", "b"):
        writer.write(Insert(block(10), "p"), token)
    assert count(client, table) == 20


def test_a_token_holds_for_each_table_partition(client: Client, table: TargetTable) -> None:
    """A block over partitions of which some were stored before a kill stores only the others when it is repeated."""
    writer = ClickHouseWriter(client, table)
    writer.write(Insert(block(20, partitions=2), "*"), "a")
    writer.write(Insert(block(30, partitions=3), "*"), "a")
    stored = client.rows(f"SELECT p, count() AS n FROM {table.qualified} GROUP BY p ORDER BY p")
    assert stored == [{"p": 0, "n": 10}, {"p": 1, "n": 10}, {"p": 2, "n": 10}]


def test_more_partitions_than_the_server_allows_in_one_block(client: Client, table: TargetTable) -> None:
    ClickHouseWriter(client, table).write(Insert(block(500, partitions=250), "*"), "a")
    assert (count(client, table), parts(client, table)) == (500, 250)


@pytest.mark.parametrize("faults", [["drop_answer"], ["refuse"], ["drop_answer", "refuse"]], ids="+".join)
def test_a_broken_connection_neither_loses_nor_doubles(
    proxy: FaultyProxy, client: Client, table: TargetTable, faults: Any
) -> None:
    waits: list[float] = []
    through = Client(settings_for(proxy.url, retry=Retry(6, 0.01, 0.05, sleep=waits.append)))
    proxy.faults[:] = faults
    assert ClickHouseWriter(through, table).write(Insert(block(10), "p"), "a") == 10
    assert count(client, table) == 10
    assert proxy.inserts == len(faults) + 1
    through.close()


def test_a_time_out_after_the_server_stored_the_block_neither_loses_nor_doubles(
    proxy: FaultyProxy, client: Client, table: TargetTable
) -> None:
    waits: list[float] = []
    through = Client(settings_for(proxy.url, timeout=1.0, retry=Retry(4, 0.01, 0.05, sleep=waits.append)))
    proxy.faults[:] = ["stall_answer"]
    ClickHouseWriter(through, table).write(Insert(block(10), "p"), "a")
    assert (count(client, table), proxy.inserts, len(waits)) == (10, 2, 1)
    through.close()


def test_without_a_window_the_same_fault_doubles(proxy: FaultyProxy, client: Client, table: TargetTable) -> None:
    """What the token is for: the fault is real."""
    client.command(f"ALTER TABLE {table.qualified} MODIFY SETTING non_replicated_deduplication_window = 0")
    through = Client(settings_for(proxy.url, retry=Retry(6, 0.01, 0.05)))
    proxy.faults[:] = ["drop_answer"]
    ClickHouseWriter(through, table).write(Insert(block(10), "p"), "a")
    assert count(client, table) == 20
    through.close()


def test_a_server_that_stays_away_ends_the_attempts(proxy: FaultyProxy, client: Client, table: TargetTable) -> None:
    waits: list[float] = []
    through = Client(settings_for(proxy.url, retry=Retry(4, 1.0, 3.0, sleep=waits.append)))
    proxy.faults[:] = ["refuse"] * 50
    with pytest.raises(ClickHouseUnavailable, match="does not answer"):
        ClickHouseWriter(through, table).write(Insert(block(10), "p"), "a")
    assert len(waits) == 3
    assert all(0 < wait <= 3.0 for wait in waits)
    through.close()


def test_what_a_retry_cannot_mend_is_raised_at_once(proxy: FaultyProxy, client: Client, table: TargetTable) -> None:
    waits: list[float] = []
    through = Client(settings_for(proxy.url, retry=Retry(4, 1.0, 3.0, sleep=waits.append)))
    client.command(f"DROP TABLE {table.qualified}")
    with pytest.raises(ClickHouseError) as caught:
        ClickHouseWriter(through, table).write(Insert(block(10), "p"), "a")
    assert caught.value.code == 60
    assert "ch_sink init" in (caught.value.hint or "")
    assert (waits, proxy.inserts) == ([], 1)
    through.close()


def test_too_many_parts_waits_longer_and_is_counted(
    client: Client, database: str, clickhouse: EmbeddedClickHouse
) -> None:
    client.command(
        f"CREATE TABLE {database}.full (id UInt64, p UInt16, v String, _version UInt64, _is_deleted UInt8) "
        "ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 100, parts_to_throw_insert = 3, parts_to_delay_insert = 2, "
        "max_delay_to_insert = 1"
    )
    client.command(f"SYSTEM STOP MERGES {database}.full")
    full = detect(client, database, "full", policy_of())
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 2:
            client.command(f"SYSTEM START MERGES {database}.full")
            client.command(f"OPTIMIZE TABLE {database}.full FINAL")

    one = Client(settings_for(clickhouse.url, retry=Retry(8, 1.0, 60.0, sleep=sleep)))
    writer = ClickHouseWriter(one, full)
    for n in range(5):
        writer.write(Insert(block(1, start=n), "p"), f"t{n}")
    assert client.rows(f"SELECT count() AS n FROM {full.qualified} FINAL") == [{"n": 5}]
    assert one.slow_downs == len(waits) >= 2
    assert min(waits) >= 5.0
    one.close()


def test_settings_are_hashable_and_hide_the_password() -> None:
    settings = ClickHouseSettings(url="http://x:1", password="hunter2-secret")
    assert hash(settings) == hash(ClickHouseSettings(url="http://x:1", password="hunter2-secret"))
    assert "hunter2" not in repr(settings)
