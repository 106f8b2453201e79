"""A file for many topics: which streams it makes, under which names, and how what is wrong with it is said."""

import time
from pathlib import Path

import pytest

from ch_sink.config import Expansion, expand, load, load_job
from ch_sink.errors import ConfigError
from ch_sink.model.values import SourceTable

JOB = r"""
kafka:
  bootstrap.servers: localhost:9092
  topics: shop\.public\..*
clickhouse:
  url: http://localhost:8123
  database: shop
  table: "{table}"
"""
TOPICS = ("shop.public.orders", "shop.public.users", "shop.public.tmp_1", "shopXpublic.orders", "other", "__offsets")


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str, name: str = "shop.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def nothing_seen(*_: object) -> set[SourceTable]:
    raise AssertionError("no event need be seen")


def expanded(path: Path, topics=TOPICS, look=nothing_seen, taken=(), overrides=()) -> Expansion:
    return expand([load_job(path, overrides, {})], lambda _: topics, look, taken=taken)


def refused(path: Path, overrides=()) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_job(path, overrides, {})
    assert caught.value.hint
    assert str(path) in str(caught.value)
    return caught.value


def test_a_pattern_makes_a_stream_of_each_topic_whose_whole_name_matches(write):
    found = expanded(write(JOB))
    assert [(c.kafka.topic, c.clickhouse.database, c.clickhouse.table) for c in found.streams] == [
        ("shop.public.orders", "shop", "orders"),
        ("shop.public.tmp_1", "shop", "tmp_1"),
        ("shop.public.users", "shop", "users"),
    ]
    assert not found.notes
    assert not found.refused


def test_a_list_holds_names_and_patterns(write):
    text = JOB.replace(r"shop\.public\..*", r"[shop.public.orders, shop.public.gone, 'shop\.public\.u.*']")
    found = expanded(write(text))
    assert [c.kafka.topic for c in found.streams] == ["shop.public.orders", "shop.public.users"]
    assert "do not exist yet: shop.public.gone" in found.notes[0]


def test_a_pattern_for_everything_leaves_out_kafkas_own_topics(write):
    text = JOB.replace(r"shop\.public\..*", "'.*'").replace("{table}", "{topic}")
    assert "__offsets" not in [c.kafka.topic for c in expanded(write(text)).streams]


@pytest.mark.parametrize(
    ("stated", "meant"),
    [("id, v", ("id", "v")), ("(id, v)", ("id", "v")), ("(id), (v)", ("(id)", "(v)")), ("[(a), b]", ("(a)", "b"))],
)
def test_a_sorting_key_may_be_written_as_clickhouse_shows_it(write, stated, meant):
    found = expanded(write(f"{JOB}init: {{order_by: {stated if stated[0] == '[' else repr(stated)}}}\n"))
    assert {config.init.order_by for config in found.streams} == {meant}


def test_the_first_exception_that_matches_holds(write):
    text = JOB + (
        "deletes: ignore\n"
        "init: {ttl: 'a', order_by: [id]}\n"
        "tables:\n"
        "  - match: shop.public.users\n"
        "    engine: append\n"
        "    init: {ttl: 'b'}\n"
        "  - match: shop.public.u.*\n"
        "    evolve: ignore\n"
        "  - match: shop.public.tmp_.*\n"
        "    skip: true\n"
    )
    found = expanded(write(text))
    orders, users = found.streams
    assert (orders.engine, orders.init.ttl, orders.evolve, orders.deletes) == (
        None,
        "a",
        "fail",
        "ignore",
    )
    assert (users.engine, users.init.ttl, users.evolve, users.deletes) == ("append", "b", "fail", "ignore")
    assert users.init.order_by == ("id",)
    assert found.skipped == ("shop.public.tmp_1",)
    assert len(found.notes) == 1
    assert "line 15: the exception shop.public.u.* matches only topics that an earlier" in found.notes[0]


def test_an_exception_that_matches_nothing_and_a_pattern_that_matches_nothing_are_noted(write):
    path = write(JOB + "tables:\n  - match: shop.public.audit\n    engine: append\n")
    assert "line 10: the exception shop.public.audit matches no topic" in expanded(path).notes[0]
    found = expanded(path, topics=("other",))
    assert not found.streams
    assert [note for note in found.notes if r"no topic matches shop\.public\..* yet" in note]


@pytest.mark.parametrize(
    ("table", "topic", "name"),
    [
        ("{schema}_{table}", "shop.public.orders", "public_orders"),
        ("{topic[0]}_{topic[-1]}", "shop.public.orders", "shop_orders"),
        ("x_{topic[1]}", "shop.public.orders", "x_public"),
        ("{topic}", "shop.public.orders", "shop.public.orders"),
        ("{schema}_{table}", "server.inventory.dbo.orders", "dbo_orders"),
    ],
)
def test_names_come_from_the_topics_name(write, table, topic, name):
    text = JOB.replace("{table}", table).replace(r"shop\.public\..*", "'.*'")
    [stream] = expanded(write(text), topics=(topic,)).streams
    assert stream.clickhouse.table == name


def test_names_that_the_topic_does_not_have_come_from_an_event(write):
    text = JOB.replace("{table}", "{database}_{schema}_{table}").replace(r"shop\.public\..*", "'.*'")
    seen = {
        "one.public.orders": SourceTable("warehouse", "public", "Orders"),
        "orders": SourceTable("warehouse", "public", "Orders"),
        "a.b.flat": SourceTable(),
    }
    found = expanded(
        write(text), topics=(*seen, "x.y.empty"), look=lambda _, topic: {seen[topic]} if topic in seen else set()
    )
    assert [c.clickhouse.table for c in found.streams] == [
        "b_b_flat",
        "warehouse_public_orders",
        "warehouse_public_Orders",
    ]
    assert found.empty == ("x.y.empty",)


def test_only_the_topic_that_is_asked_for_is_looked_into(write):
    """A look reads a topic's first and last events, which takes a while for a hundred of them."""
    looked = []

    def look(_config, topic):
        looked.append(topic)
        return {SourceTable("shop", "public", topic)}

    text = JOB.replace("{table}", "{database}_{schema}_{table}").replace(r"shop\.public\..*", "'[a-c]'")
    jobs = [load_job(write(text), (), {})]
    found = expand(jobs, lambda _: ("a", "b", "c"), look, only_topic="b")
    assert [c.kafka.topic for c in found.streams] == ["b"]
    assert (looked, found.notes) == (["b"], ())
    assert expand(jobs, lambda _: ("a", "c"), look, only_topic="b").streams == ()


def test_a_topic_of_several_source_tables_is_split(write):
    text = JOB.replace("{table}", "{schema}_{table}").replace(r"shop\.public\..*", "'.*'")
    seen = {SourceTable("d", "p", "orders"), SourceTable("d", "p", "users"), SourceTable("d", "q", "orders")}
    path = write(text)
    found = expanded(path, topics=("routed",), look=lambda *_: seen)
    assert [(c.stream_name, c.source_table) for c in found.streams] == [
        ("routed:shop.p_orders", "d.p.orders"),
        ("routed:shop.p_users", "d.p.users"),
        ("routed:shop.q_orders", "d.q.orders"),
    ]
    # A table that appears later joins, and the streams that run stay what they are.
    more = expanded(
        path, topics=("routed",), look=lambda *_: {*seen, SourceTable("d", "p", "new")}, taken=found.streams
    )
    assert [c for c in more.streams if c in found.streams] == list(found.streams)
    assert len(more.streams) == 4
    one = JOB.replace(r"shop\.public\..*", "'.*'")
    clash = expanded(write(one), topics=("routed",), look=lambda *_: seen)
    said = "source tables d.p.orders and d.q.orders of topic routed would both be written to shop.orders"
    assert said in str(clash.refused["routed"])


def test_a_topic_with_a_long_name_is_split_only_where_the_file_says_so(write):
    seen = {SourceTable("d", "p", "orders"), SourceTable("d", "p", "users")}
    assert [c.source_table for c in expanded(write(JOB), topics=("shop.public.all",)).streams] == [""]
    found = expanded(write(JOB + "split: true\n"), topics=("shop.public.all",), look=lambda *_: seen)
    assert [(c.clickhouse.table, c.source_table) for c in found.streams] == [
        ("orders", "d.p.orders"),
        ("users", "d.p.users"),
    ]


def test_a_single_topic_is_not_split(write):
    """Rows of two tables with one key would be one row."""
    one = JOB.replace("topics: shop", "topic: shop") + "split: true\n"
    with pytest.raises(ConfigError, match=r"kafka\.topic, which is one") as refused:
        load_job(write(one), (), {}).only()
    assert "Name the topic in kafka.topics" in (refused.value.hint or "")
    assert load_job(write(one + "source_table: p.orders\n"), (), {}).only().source_table == "p.orders"


def test_a_name_that_nothing_shows_is_refused_for_that_topic_alone(write):
    text = JOB.replace(r"shop\.public\..*", "'.*'")
    found = expanded(write(text), topics=("flat", "a.b.c"), look=lambda *_: {SourceTable()})
    assert [c.kafka.topic for c in found.streams] == ["a.b.c"]
    assert "neither the name of topic flat nor its events say what {table} is" in str(found.refused["flat"])


@pytest.mark.parametrize("key", ["clickhouse.table", "clickhouse.database", "stream", "columns.add.x"])
def test_an_unknown_field_is_refused_with_those_that_exist(write, key):
    error = refused(write(JOB), [f"{key}=a_{{tabel}}"])
    assert "{tabel}" in str(error)
    assert "{table}" in (error.hint or "")


@pytest.mark.parametrize(("view", "engine"), [("current", "replacing"), ("history", "append"), ("at", "MergeTree")])
def test_a_table_with_the_name_of_a_view_of_another_topic_s_table_is_refused(write, view, engine):
    """The topic that runs already keeps its table; an append table alone has views at a moment."""
    path = write(JOB + f"engine: {engine}\n")
    both = ("shop.public.orders", f"shop.public.orders_{view}")
    for first, second in (both, both[::-1]):
        found = expanded(path, topics=both, taken=expanded(path, topics=(first,)).streams)
        assert [c.kafka.topic for c in found.streams] == [first]
        assert f"shop.orders_{view}, the table of topic {both[1]}, has the name of a view of orders" in str(
            found.refused[second]
        )
    assert not expanded(path, topics=("shop.public.orders", "shop.public.orders_at_version_2")).refused
    assert not expanded(write(JOB), topics=("shop.public.orders", "shop.public.orders_history")).refused


def test_two_topics_of_one_table_are_refused_unless_they_say_so(write):
    text = JOB.replace(r"shop\.public\..*", r".*\.orders")
    topics = ("eu.public.orders", "us.public.orders")
    found = expanded(write(text), topics=topics)
    assert [c.kafka.topic for c in found.streams] == ["eu.public.orders"]
    error = found.refused["us.public.orders"]
    assert "topics eu.public.orders and us.public.orders would both be written to shop.orders" in str(error)
    assert "merge: true" in (error.hint or "")

    merged = expanded(write(text + "merge: true\n"), topics=topics)
    assert not merged.refused
    assert [c.columns.add for c in merged.streams] == [
        {"_source": "'eu.public.orders'"},
        {"_source": "'us.public.orders'"},
    ]
    assert merged.streams[0].policy().columns.source == ("_source",)

    own = text + "merge: true\ncolumns: {add: {region: \"'{topic[0]}'\"}}\n"
    assert [c.columns.add["region"] for c in expanded(write(own), topics=topics).streams] == ["'eu'", "'us'"]

    alike = text + "merge: true\ncolumns: {add: {region: \"'{table}'\"}}\n"
    assert "nothing distinguishes their rows" in str(expanded(write(alike), topics=topics).refused[topics[1]])


@pytest.mark.parametrize("group", ["exclude: [id]", "mask: {id: sha256}"])
def test_a_key_column_is_neither_excluded_nor_masked(write, group):
    error = refused(write(JOB + f"key_columns: [id]\ncolumns: {{{group}}}\n"))
    assert "'id', which is one of key_columns" in str(error)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("{rename: {a: x, b: x}}", "fills the column 'x' twice"),
        ("{rename: {a: x}, add: {x: '1'}}", "fills the column 'x' twice"),
        ("{exclude: [a], mask: {a: sha256}}", "excludes the column 'a' and has it in mask"),
        ("{mask: {a: md4}}", "columns.mask.a"),
        ("{mask: {a: hmac-sha256}}", "needs mask_key"),
        ("{excluded: [a]}", "did you mean columns.exclude?"),
    ],
)
def test_wrong_choices_of_columns_are_refused(write, columns, said):
    assert said in str(refused(write(JOB + f"columns: {columns}\n")))


def test_the_key_of_a_mask_is_never_shown(write):
    path = write(JOB + "columns: {mask: {a: hmac-sha256}, mask_key: hunter2}\n")
    [stream] = expanded(path, topics=("shop.public.orders",)).streams
    assert "hunter2" not in repr(stream)
    assert "hunter2" not in stream.model_dump_json()
    assert "hunter2" not in repr(stream.policy())
    assert type(stream).from_task_json(stream.to_task_json()) == stream


def test_wrong_exceptions_are_told_with_their_lines(write):
    text = JOB + "tables:\n  - match: a\n    evolv: fail\n  - match: b\n    clickhouse: {tabel: x}\n"
    error = refused(write(text))
    assert "line 11: evolv is not a known key; did you mean evolve?" in str(error)
    error = refused(write(text.replace("evolv:", "evolve:")))
    assert "line 13: clickhouse.tabel" in str(error)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tables:\n  - skip: true\n", "tables[0] has no `match`"),
        ("tables:\n  - match: '('\n", "tables[0].match is not a pattern"),
        ("tables:\n  - match: a\n    skip: perhaps\n", "tables[0].skip must be true or false"),
        ("tables:\n  - match: a\n    kafka: {topic: b}\n", "tables[0].kafka cannot differ"),
        ("stream: orders\n", "would name every stream"),
        ("tables: {ledger: a}\nstate_tables: {ledger: b}\n", "tables is not a list"),
    ],
)
def test_what_a_file_of_many_topics_cannot_say(write, text, said):
    assert said in str(refused(write(JOB + text)))


@pytest.mark.parametrize("topics", ["'('", "[]", "{a: b}", "[1]"])
def test_topics_that_are_no_pattern_are_refused(write, topics):
    error = refused(write(JOB.replace(r"shop\.public\..*", topics)))
    assert "line 4: kafka.topics" in str(error)


def test_topic_and_topics_exclude_each_other(write):
    assert "exclude each other" in str(refused(write(JOB.replace("  topics:", "  topic: a\n  topics:"))))


def test_one_stream_is_not_loaded_from_a_file_of_many(write):
    with pytest.raises(ConfigError, match="a stream for each topic"):
        load(write(JOB), environ={})


def test_the_sinks_own_tables_are_named_beside_the_exceptions(write):
    [stream] = expanded(write(JOB + "state_tables: {ledger: mine}\n"), topics=("shop.public.a",)).streams
    assert stream.state_tables.ledger == "mine"
    with pytest.raises(ConfigError, match=r"line \d+: tables is not a list") as refused:
        load(write(JOB + "tables: {ledger: mine}\n"), environ={})
    assert "state_tables" in refused.value.hint


def test_a_stream_has_the_same_name_whichever_file_it_comes_from(write):
    single = JOB.replace(r"topics: shop\.public\..*", "topic: shop.public.orders").replace('"{table}"', "orders")
    alone = load(write(single, "orders.yaml"), environ={})
    named = load(write(single + "stream: mine\n", "orders.yaml"), environ={})
    job = write(JOB)
    [together] = expanded(job, topics=("shop.public.orders",)).streams
    for name in ("stream_name", "consumer_group", "state_database", "state_tables"):
        assert getattr(together, name) == getattr(alone, name), name
    # Two jobs that share the topics between them.
    halves = [write(JOB.replace(r"public\..*", rf"public\.{part}.*"), f"{part}.yaml") for part in ("o", "u")]
    found = expand([load_job(path, (), {}) for path in halves], lambda _: TOPICS, nothing_seen)
    whole = {c.stream_name for c in expanded(job).streams if "tmp" not in c.kafka.topic}
    assert {c.stream_name for c in found.streams} == whole
    excepted = write(JOB + "tables:\n  - match: shop.public.orders\n    stream: mine\n")
    assert expanded(excepted, topics=("shop.public.orders",)).streams[0].stream_name == named.stream_name


def test_a_topic_of_two_files_is_refused(write):
    one, two = write(JOB), write(JOB.replace(r"public\..*", r"public\.orders"), "orders.yaml")
    found = expand([load_job(path, (), {}) for path in (one, two)], lambda _: TOPICS, nothing_seen)
    assert "have the same stream name" in str(found.refused["shop.public.orders"])


def test_a_stream_that_runs_keeps_its_table(write):
    path = write(JOB.replace(r"shop\.public\..*", r".*\.orders"))
    running = expanded(path, topics=("us.public.orders",)).streams
    found = expanded(path, topics=("eu.public.orders", "us.public.orders"), taken=running)
    assert [c.kafka.topic for c in found.streams] == ["us.public.orders"]
    assert list(found.refused) == ["eu.public.orders"]


@pytest.mark.parametrize("value", ["10 minutes", "600", "unlimited"])
def test_patience_is_a_duration_or_unlimited(write, value):
    [stream] = expanded(write(JOB + f"retry_for: {value}\n"), topics=("shop.public.a",)).streams
    assert stream.retry_for == (None if value == "unlimited" else 600)
    assert type(stream).from_task_json(stream.to_task_json()) == stream


@pytest.mark.long
def test_ten_thousand_topics_are_quickly_streams(write):
    path = write(JOB + "tables:\n  - match: '.*7'\n    evolve: ignore\n")
    topics = [f"shop.public.t{n}" for n in range(10_000)]
    began = time.process_time()
    found = expanded(path, topics=topics)
    assert len(found.streams) == 10_000
    assert time.process_time() - began < 10  # about half a second
    assert found.streams[0].init is found.streams[1].init, "what streams have in common is kept once"


def test_streams_of_one_topic_do_not_share_a_consumer_group(write):
    """One would take the other's offsets for its own, and raise the alarm that ClickHouse was taken back."""
    single = JOB.replace(r"topics: shop\.public\..*", "topic: orders\n  group.id: mine")
    files = [write(single.replace("{table}", name) + f"stream: {name}\n", f"{name}.yaml") for name in ("a", "b")]
    found = expand([load_job(path, (), {}) for path in files], lambda _: TOPICS, nothing_seen)
    assert "with the same consumer group, mine" in str(found.refused["orders"])
    assert [c.stream_name for c in found.streams] == ["a"]
    # Of several topics it is one group as anywhere in Kafka.
    many = JOB.replace("localhost:9092", "localhost:9092\n  group.id: mine")
    assert {c.consumer_group for c in expanded(write(many)).streams} == {"mine"}


def test_streams_of_a_split_topic_have_groups_of_their_own(write):
    seen = {SourceTable("d", "p", "orders"), SourceTable("d", "p", "users")}
    text = JOB.replace(r"shop\.public\..*", "'.*'\n  group.id: mine")
    found = expanded(write(text), topics=("routed",), look=lambda *_: seen)
    assert {c.consumer_group for c in found.streams} == {"mine.routed:shop.orders", "mine.routed:shop.users"}
