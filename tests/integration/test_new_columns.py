"""Columns that the source adds and drops while a stream reads hand-written events of it."""

from dataclasses import replace

import pytest

from ch_sink.clickhouse import Client, detect
from ch_sink.errors import StreamFailed
from ch_sink.model.policy import ColumnPolicy
from ch_sink.table.spec import chosen_schema
from tests.support.evolving import Added, EvolvingSource
from tests.support.evolving_feed import POLICY, hand_fed, shown, types_of
from tests.support.stream import Feed, make_table

pytestmark = pytest.mark.integration
ENGINES = ("replacing", "sign-replacing", "collapsing", "versioned-collapsing", "append")


def test_new_columns_stand_where_the_source_has_them(client: Client, database: str) -> None:
    source = EvolvingSource(partitions=1)
    source.write(1, v="a")
    source.add("first", Added("int32"), before="id")
    source.add("mid dle", Added("string", False, "it's"), before="v")
    source.add("mid2", Added("int64"), before="v")
    source.add("last", Added("boolean"))
    source.write(2, v="b", first=3, mid2=4, last=True)
    feed = hand_fed(client, database, source)
    feed.run()
    assert list(types_of(feed)) == list(source.columns)
    assert [c.name for c in feed.target.table.columns][-2:] == ["_version", "_is_deleted"]
    assert shown(client, database) == source.truth()
    comments = {c.name: c.comment for c in feed.target.table.columns}
    assert comments["mid dle"] == 'debezium: string {"optional":false}'


@pytest.mark.sampled(2)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_column_whose_value_in_stored_rows_is_not_known_stops_the_stream(
    client: Client, database: str, engine: str
) -> None:
    """As Django adds one: its default is dropped before the first event, and the rows have it all the same."""
    source = EvolvingSource(partitions=1)
    source.write(1, v="a")
    source.add("n", Added("int32", False))
    source.rows[1]["n"] = 5
    source.write(2, n=7)
    feed = hand_fed(client, database, source, engine=engine)
    feed.chunk(0, 1)
    with pytest.raises(StreamFailed, match="offset 1 has the new column 'n', and does not state") as caught:
        feed.chunk(0, 2)
    assert "ADD COLUMN `n` Int32 DEFAULT …; or, with a section source, let `ch_sink resync" in str(caught.value.hint)
    assert shown(client, database, "id") == [(1,)]
    client.command(f"ALTER TABLE {database}.t ADD COLUMN n Int32 DEFAULT 5 AFTER v")
    again = Feed(
        client, database, detect(client, database, "t", POLICY), feed.name, "evolving", POLICY, source.records(),
        again=feed,
    )  # fmt: skip
    again.at = {0: 1}
    again.run()
    assert shown(client, database, "id, v, n") == source.truth()


def test_a_table_without_rows_gets_any_column(client: Client, database: str) -> None:
    source = EvolvingSource(partitions=1)
    declared = source.declared()
    source.add("n", Added("int32", False))
    source.write(2, n=7)
    feed = Feed(
        client, database, make_table(client, database, "t", declared, policy=POLICY), f"{database}/hand", "evolving",
        POLICY, source.records(),
    )  # fmt: skip
    feed.run()
    assert shown(client, database) == source.truth()


def test_absent_null_and_default_are_three_things(client: Client, database: str) -> None:
    source = EvolvingSource(partitions=2)
    for key in (2, 1, 3):
        source.write(key, v=f"old {key}")
    source.add("n", Added("int32", True, 5))
    source.write(2, n=None)
    source.write(4, n=9)
    source.write(6)
    feed = hand_fed(client, database, source)
    feed.chunk(0, feed.ends[0])  # the column is there before partition 1 brings rows of the older shape
    feed.chunk(1, feed.ends[1])
    assert types_of(feed)["n"] == "Nullable(Int32)"
    wanted = [(1, 5), (2, None), (3, 5), (4, 9), (6, 5)]
    assert shown(client, database, "id, n") == wanted == [(r[0], r[2]) for r in source.truth()]


def test_a_dropped_column_gets_its_default_and_a_renamed_one_is_dropped_and_added(
    client: Client, database: str
) -> None:
    source = EvolvingSource(partitions=1, columns={"id": Added("int64", False), "v": Added("string", False, "gone")})
    source.write(1, v="a")
    source.drop("v")
    source.add("renamed", Added("string"))
    source.write(2, renamed="b")
    feed = hand_fed(client, database, source)
    feed.run()
    assert shown(client, database, "id, v, renamed") == [(1, "a", None), (2, "gone", "b")]


def test_both_shapes_in_one_chunk_after_the_table_has_the_column(client: Client, database: str) -> None:
    for schemas in (True, False):
        client.command(f"DROP TABLE IF EXISTS {database}.t SYNC")
        source = EvolvingSource(schemas=schemas, partitions=1)
        source.write(1, v="a")
        source.add("n", Added("int64"))
        source.write(2, n=1)
        feed = hand_fed(client, database, source)
        feed.run()
        again = Feed(client, database, feed.target.table, f"{database}/again", "evolving", POLICY, source.records())
        again.chunk(0, 2)
        assert again.evolved == []
        assert (shown(client, database), feed.evolved) == (source.truth(), [("n",)])


def test_a_column_that_one_of_several_topics_brings_stops_it_if_others_have_rows(client: Client, database: str) -> None:
    """The first event of a new tenant has the column; the rows of the others get theirs from a later ALTER."""
    before, after = EvolvingSource(partitions=1), EvolvingSource(partitions=1)
    before.write(1, v="a")
    after.add("n", Added("int32", False))
    after.write(2, n=7)
    for name, source in (("one", before), ("two", after)):
        columns = ColumnPolicy(add=(("tenant", f"'{name}'"),), source=("tenant",))
        policy = replace(POLICY, columns=columns)
        target = make_table(client, database, "t", chosen_schema(before.declared(), columns), policy=policy)
        feed = Feed(client, database, target, f"{database}/{name}", name, policy, source.records())
        if name == "one":
            feed.run()
    with pytest.raises(StreamFailed, match="offset 0 has the new column 'n', and does not state") as caught:
        feed.chunk(0, 1)
    assert "ch_sink resync" not in str(caught.value.hint)
