"""Source tables whose columns change in mid-stream: the target follows, and equals its source."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product

import pytest

from ch_sink.clickhouse import Client, detect
from ch_sink.errors import ClickHouseError, StreamFailed, TableError
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.model.policy import policy_of
from ch_sink.pipeline.barrier import Barrier
from ch_sink.table.model import TargetTable
from tests.support.choose import each_value, some
from tests.support.endpoint import settings_for
from tests.support.evolving import Added, EvolvingSource
from tests.support.evolving_feed import POLICY, hand_fed, shown, types_of
from tests.support.fixtures import topic_of
from tests.support.kills import Kill
from tests.support.recorded import at_the_snapshot, equal
from tests.support.stream import Feed, make_table

pytestmark = pytest.mark.integration
SOURCES = ("mariadb", "postgres")
ENGINES = ("replacing", "sign-replacing", "collapsing", "versioned-collapsing", "append")


def feed_of(client: Client, database: str, stream: str, table: str, engine: str = "replacing") -> Feed:
    target: TargetTable = make_table(
        client, database, table, at_the_snapshot(stream, table), engine=engine, policy=POLICY
    )
    return Feed(client, database, target, stream, topic_of(stream, table), POLICY)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("source", "form", "engine"), each_value(SOURCES, ("json_schema", "avro"), ENGINES))
def test_columns_added_and_dropped_in_mid_stream(
    client: Client, database: str, source: str, form: str, engine: str
) -> None:
    stream = f"{source}-{form}"
    feed = feed_of(client, database, stream, "ac", engine)
    feed.run()
    assert {name for names in feed.evolved for name in names} == {"extra", "d2"}
    types = {c.name: (c.type, c.default_expression, c.comment) for c in feed.target.table.columns}
    assert types["extra"] == ("Int32", "7", 'debezium: int32 {"optional":false}')
    assert types["d2"][:2] == ("Nullable(Decimal(10, 2))", "")
    assert equal(client, database, source, stream, "ac") == []


def test_the_views_at_a_moment_show_added_columns(client: Client, database: str) -> None:
    feed_of(client, database, "postgres-json_schema", "ac", "append").run()
    moment = f"(SELECT max(_version) FROM {database}.ac)"
    rows = client.rows(f"SELECT * FROM {database}.ac_at_version(version = {moment}) ORDER BY k")
    assert {"extra", "d2"} <= rows[0].keys()
    assert rows == client.rows(f"SELECT * FROM {database}.ac_current ORDER BY k")
    assert rows == client.rows(f"SELECT * FROM {database}.ac_at(at = now()) ORDER BY k")
    life = "EXCEPT(valid_from, valid_to, _version, _op)"
    assert rows == client.rows(f"SELECT * {life} FROM {database}.ac_history WHERE valid_to IS NULL ORDER BY k")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("source", "seed"), some(product(SOURCES, range(6)), [(SOURCES[0], 0), (SOURCES[1], 1), (SOURCES[1], 3)])
)
def test_any_cut_order_of_partitions_and_second_attempt(client: Client, database: str, source: str, seed: int) -> None:
    stream, rng = f"{source}-json_schema", random.Random(seed)
    feed = feed_of(client, database, stream, "ac")
    feed.run(rng, longest=3)
    again = Feed(client, database, replace(feed.target.table), stream, feed.topic, POLICY)
    again.run(rng, longest=5)
    assert again.evolved == []
    assert equal(client, database, source, stream, "ac") == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("source", SOURCES)
def test_plain_json_tells_what_its_values_tell(client: Client, database: str, source: str) -> None:
    feed = feed_of(client, database, f"{source}-json_plain", "ac")
    feed.run(random.Random(1), longest=2)
    types = {c.name: c.type for c in feed.target.table.columns}
    assert (types["extra"], types["d2"]) == ("Nullable(Int64)", "Nullable(String)")
    rows = client.rows(f"SELECT id, k, extra, d2 FROM {database}.ac_current ORDER BY k")
    assert [tuple(r.values()) for r in rows] == [
        (1, 1, 7, None),
        (1, 2, None, None),  # the source says 7, its default, which plain JSON does not tell
        (1, 4, 9, "fQ=="),
    ]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("longest", [1, 2, 20])
def test_rows_without_a_key_are_recognised_in_either_shape(client: Client, database: str, longest: int) -> None:
    source = EvolvingSource(partitions=1, keyed=False)
    for key in (2, 4, 6):
        source.write(key, v="a")
    source.delete(2)
    source.add("n", Added("int32", True, 5))
    source.add("m", Added("string", False, "x"))
    source.write(4, v="b")  # its row before has both defaults
    source.write(1, n=8)
    source.write(3)
    source.delete(1)
    source.delete(6)
    feed = hand_fed(client, database, source, engine="append")
    feed.run(random.Random(0), longest=longest)
    assert shown(client, database) == source.truth()


@pytest.mark.parametrize("schemas", [True, False], ids=["schema", "plain"])
def test_a_column_that_can_be_null_by_now_is_let_be_null(client: Client, database: str, schemas: bool) -> None:
    columns = {"id": Added("int64", False), "v": Added("string", False), "n": Added("int32", False, 3)}
    source = EvolvingSource(schemas=schemas, partitions=1, columns=columns)
    source.write(0, v="a", n=1)
    source.change("n", optional=True)
    source.write(0, n=None)
    feed = hand_fed(client, database, source)
    assert types_of(feed)["n"] == "Int32"
    feed.run()
    assert types_of(feed) == {"id": "Int64", "v": "String", "n": "Nullable(Int32)"}
    assert shown(client, database, "id, v, n") == [(0, "a", None)]


@pytest.mark.parametrize("schemas", [True, False], ids=["schema", "plain"])
@pytest.mark.parametrize("evolve", ["fail", "add_columns"])
def test_a_null_that_cannot_be_stored_stops_the_stream(
    client: Client, database: str, evolve: str, schemas: bool
) -> None:
    columns = {"id": Added("int64", False), "n": Added("int32", False)}
    source = EvolvingSource(schemas=schemas, partitions=1, columns=columns)
    source.write(0, n=1)
    policy = replace(POLICY, changes=replace(POLICY.changes, evolve=evolve))  # type: ignore[arg-type]
    placed = {"order_by": ("id", "n")} if evolve == "add_columns" else {}
    feed = hand_fed(client, database, source, policy, **placed)
    source.change("n", optional=True)
    source.write(0, n=None)
    feed = Feed(client, database, feed.target.table, f"{database}/null", "evolving", policy, source.records())
    with pytest.raises(StreamFailed, match="'n' that can be null now") as stopped:
        feed.run()
    wanted = "MODIFY COLUMN `n` Nullable(Int32)" if evolve == "fail" else "recreate the table"
    assert wanted in str(stopped.value.hint)


def test_a_value_out_of_range_does_not_hide_a_null_that_cannot_be_stored(client: Client, database: str) -> None:
    source = EvolvingSource(
        schemas=False, partitions=1, columns={"id": Added("int64", False), "n": Added("int32", False)}
    )
    source.write(0, n=1)
    policy = replace(
        POLICY, changes=replace(POLICY.changes, evolve="fail"), values=replace(POLICY.values, out_of_range="clamp")
    )
    feed = hand_fed(client, database, source, policy)
    source.change("n", optional=True)
    source.write(1, n=3_000_000_000)
    source.write(2, n=None)
    feed = Feed(client, database, feed.target.table, f"{database}/null", "evolving", policy, source.records())
    with pytest.raises(StreamFailed, match="'n' that can be null now"):
        feed.run()


def test_a_key_column_that_the_source_does_not_declare_as_never_null_is_none_that_has_changed(
    client: Client, database: str
) -> None:
    """As with key_columns: tables without a primary key seldom declare theirs."""
    source = EvolvingSource(partitions=1, columns={"id": Added("int64", True), "n": Added("int32", False)})
    source.write(0, n=1)
    feed = hand_fed(client, database, source, POLICY)
    feed.run()
    assert client.rows(f"SELECT id, n FROM {feed.target.table.qualified}") == [{"id": 0, "n": 1}]


def test_types_grow_with_the_sources(client: Client, database: str) -> None:
    source = EvolvingSource(partitions=1, columns={"id": Added("int64", False), "n": Added("int32", False, 1)})
    source.write(1, n=7)
    feed = hand_fed(client, database, source)
    source.change("n", kind="int64")
    source.write(2, n=2**40)
    feed = Feed(client, database, feed.target.table, f"{database}/wide", "evolving", POLICY, source.records())
    feed.run()
    assert types_of(feed)["n"] == "Int64"
    assert shown(client, database) == source.truth()
    comments = {c.name: c.comment for c in feed.target.table.columns}
    assert "int64" in comments["n"]


def test_without_evolution_a_value_that_grew_out_of_its_column_is_a_bad_record(client: Client, database: str) -> None:
    source = EvolvingSource(partitions=1, columns={"id": Added("int64", False), "n": Added("int32", False, 1)})
    source.write(1, n=7)
    policy = policy_of(evolve="fail")
    feed = hand_fed(client, database, source, policy)
    source.change("n", kind="int64")
    source.write(2, n=2**40)
    source.write(3, n=8)
    feed = Feed(client, database, feed.target.table, f"{database}/narrow", "evolving", policy, source.records())
    feed.run()
    assert feed.letters == 1
    assert shown(client, database) == [(1, 7), (3, 8)]


@pytest.mark.parametrize(("evolve", "wanted"), [("ignore", [(1,), (2,)]), ("fail", [])])
def test_without_add_columns_the_table_stays(
    client: Client, database: str, evolve: str, wanted: list[tuple[int]]
) -> None:
    source = EvolvingSource(partitions=1)
    source.write(1, v="a")
    source.add("n", Added("int64"))
    source.write(2, n=1)
    policy = replace(POLICY, changes=replace(POLICY.changes, evolve=evolve))  # type: ignore[arg-type]
    feed = hand_fed(client, database, source, policy)
    if evolve == "fail":
        with pytest.raises(StreamFailed, match=r"offset 1 .*lacks: 'n'"):
            feed.run()
    else:
        feed.run()
    assert "n" not in types_of(feed)
    assert shown(client, database, "id") == wanted


def test_a_schemaless_field_needs_no_column_while_it_is_null(client: Client, database: str) -> None:
    source = EvolvingSource(schemas=False, partitions=1)
    source.write(1, v="a")
    source.add("n", Added("double"))
    source.write(2)
    feed = hand_fed(client, database, source)
    feed.run()
    assert (feed.evolved, shown(client, database, "id")) == ([], [(1,), (2,)])
    source.write(3, n=1)
    source.write(4, n=2.5)
    again = Feed(client, database, feed.target.table, f"{database}/more", "evolving", POLICY, source.records())
    again.run()
    assert types_of(again)["n"] == "Nullable(Float64)"
    assert shown(client, database) == source.truth()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("died", ["before alter", "after alter"])
def test_a_second_attempt_stores_each_change_once_whatever_the_table_has_by_then(
    client: Client, database: str, died: str
) -> None:
    source = EvolvingSource(partitions=1)
    for key in (1, 2):
        source.write(key, v="old")
    source.add("n", Added("int64", False, 4))
    for key in (3, 1):
        source.write(key, n=key)
    feed = hand_fed(client, database, source, engine="append")
    feed.chunk(0, feed.ends[0], Kill(died))
    assert feed.runner.lives == 2
    assert client.rows(f"SELECT count() AS n FROM {database}.t") == [{"n": 4}]
    assert shown(client, database) == source.truth()


def test_a_users_own_view_stays_as_it_is(client: Client, database: str, caplog: pytest.LogCaptureFixture) -> None:
    source = EvolvingSource(partitions=1)
    source.write(1, v="a")
    feed = hand_fed(client, database, source)
    client.command(
        f"CREATE OR REPLACE VIEW {database}.t_current AS SELECT id, upper(v) AS loud FROM {database}.t FINAL"
    )
    source.add("n", Added("int64"))
    source.write(2, n=1)
    Feed(client, database, feed.target.table, f"{database}/view", "evolving", POLICY, source.records()).run()
    assert shown(client, database)[0] == (1, "A")
    assert "is left alone" in caplog.text


def test_a_table_with_the_name_of_the_view_stops_the_stream(client: Client, database: str) -> None:
    source = EvolvingSource(partitions=1)
    source.write(1, v="a")
    feed = hand_fed(client, database, source)
    client.command(f"DROP VIEW {database}.t_current")
    client.command(f"CREATE TABLE {database}.t_current (mine Int64) ENGINE = MergeTree ORDER BY mine")
    with pytest.raises(TableError, match="t_current exists and has the engine MergeTree"):
        feed.run()


def test_names_are_compared_as_written_and_a_clash_by_letter_case_is_told(
    client: Client, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    source = EvolvingSource(partitions=1)
    source.write(1, v="a")
    source.add("V", Added("int64"))
    source.write(2, v="b", V=8)
    feed = hand_fed(client, database, source)
    feed.run()
    assert shown(client, database) == source.truth()
    assert "'v' and 'V' differ by letter case only" in caplog.text


@pytest.mark.long
def test_two_streams_alter_one_table_at_once(client: Client, clickhouse: EmbeddedClickHouse, database: str) -> None:
    """Each in a thread and with a client of its own, meeting before every ALTER; keys of the two do not overlap."""
    sources = []
    for number in (0, 1):
        source = EvolvingSource(partitions=1)
        source.write(10 * number + 1, v="a")
        for step in range(5):
            source.add(f"c{step}", Added("int64", False, step))
            source.add(f"own{number}{step}", Added("string"))
            source.write(10 * number + 2 + step, **{f"c{step}": 100 + step, f"own{number}{step}": "x"})
        sources.append(source)
    table = hand_fed(client, database, sources[0]).target.table
    meet = threading.Barrier(2, timeout=60)

    class Meeting(Feed):
        def evolve(self, barrier: Barrier) -> None:
            meet.wait()
            super().evolve(barrier)

    def work(number: int) -> Feed:
        own = Client(settings_for(clickhouse.url))
        feed = Meeting(own, database, table, f"{database}/{number}", "evolving", POLICY, sources[number].records())
        feed.run(longest=1)
        own.close()
        return feed

    with ThreadPoolExecutor(2) as pool:
        feeds = list(pool.map(work, (0, 1)))
    assert all(len(feed.evolved) == 5 for feed in feeds)
    for source in sources:
        names = ", ".join(source.columns)
        low = min(source.rows)
        rows = client.rows(f"SELECT {names} FROM {database}.t_current WHERE id BETWEEN {low} AND {low + 9} ORDER BY id")
        assert [tuple(r.values()) for r in rows] == source.truth()


@pytest.mark.long
def test_a_distributed_table_is_altered_with_its_local_table_or_the_statements_are_shown(
    node: Client, over: str
) -> None:
    """This cluster of one has no queue of distributed DDL: the user carries the shown statements out, and goes on."""
    stream = "mariadb-json_schema"
    make_table(node, over, "ac", at_the_snapshot(stream, "ac"), policy=POLICY)
    node.command(f"RENAME TABLE {over}.ac TO {over}.local")
    node.command(f"CREATE TABLE {over}.ac AS {over}.local ENGINE = Distributed(one, {over}, local, id)")
    feed = Feed(node, over, detect(node, over, "ac", POLICY), stream, topic_of(stream, "ac"), POLICY)
    with pytest.raises(ClickHouseError) as refused:
        feed.run()
    statements = f"ALTER{str(refused.value.hint).partition(': ALTER')[2]}".split("; ")
    assert f"ALTER TABLE `{over}`.`local` ON CLUSTER `one` ADD COLUMN" in statements[0]
    assert statements[1].startswith(f"ALTER TABLE `{over}`.`ac` ADD COLUMN")
    for statement in statements:
        node.command(statement.replace(" ON CLUSTER `one`", ""))
    again = Feed(node, over, detect(node, over, "ac", POLICY), stream, topic_of(stream, "ac"), POLICY)
    again.run()
    rows = node.rows(f"SELECT d2, id, k, extra FROM {over}.ac FINAL WHERE _is_deleted = 0 ORDER BY k")
    assert [tuple(str(v) for v in r.values()) for r in rows] == [
        ("None", "1", "1", "7"),
        ("None", "1", "2", "7"),
        ("1.25", "1", "4", "9"),
    ]
