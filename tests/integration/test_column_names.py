"""Columns whose names hold quotes, backslashes and control characters, from the event to the view of the table."""

import random

import pytest

from ch_sink.clickhouse import Client
from ch_sink.model.policy import policy_of
from ch_sink.types.sql import quote
from tests.support.evolving import Added, EvolvingSource
from tests.support.hand import PLACEHOLDER, HandFed, postgres
from tests.support.hand_tables import OWN, each_engine
from tests.support.stream import Feed, make_table

pytestmark = pytest.mark.integration
KEY, TEXT, LATER = 'the "id"\\', "line\nbreak\t'`", '\x01 "added" \\n'
POLICY = policy_of(evolve="add_columns", on_bad_record="fail")


@pytest.mark.parametrize("schemas", [True, False])
@pytest.mark.parametrize("engine", ["replacing", "versioned-collapsing", "append"])
def test_init_insert_and_evolution(client: Client, database: str, engine: str, schemas: bool) -> None:
    columns = {KEY: Added("int64", False), TEXT: Added("string")}
    source = EvolvingSource(schemas=schemas, key=KEY, columns=columns)
    source.write(1, **{TEXT: "a"})
    source.write(2, **{TEXT: 'b "\\'})
    target = make_table(client, database, "t", source.declared(), engine=engine, policy=POLICY)
    source.add(LATER, Added("int64"))
    source.write(3, **{TEXT: "c", LATER: 7})
    source.write(1, **{TEXT: None, LATER: 8})
    source.delete(2)
    feed = Feed(client, database, target, f"{database}/hand", "evolving", POLICY, source.records())
    feed.run(random.Random(3), longest=2)
    assert feed.letters == 0
    assert feed.evolved == [(LATER,)]
    shown = client.rows(f"SELECT {', '.join(map(quote, source.columns))} FROM {database}.t_current ORDER BY 1")
    assert [tuple(row.values()) for row in shown] == source.truth()


@each_engine
def test_lookup_of_a_value_that_the_event_leaves_out(
    client: Client, database: str, own_tables: str, engine: str
) -> None:
    clause, own = OWN[engine]
    columns = f"{quote(KEY)} Int64, {quote(TEXT)} Nullable(String), {quote(LATER)} Int64"
    ddl = f"({columns}, {own}) ENGINE = {clause} ORDER BY {quote(KEY)} SETTINGS non_replicated_deduplication_window = 9"
    fed = HandFed(client, database, own_tables, ddl, (KEY,))

    def row(text: str, number: int) -> dict[str, object]:
        return {KEY: 1, TEXT: text, LATER: number}

    fed.feed([postgres("c", {KEY: 1}, None, row("long", 1), 100, 90)])
    fed.restart()
    fed.feed([postgres("u", {KEY: 1}, None, row(PLACEHOLDER, 2), 200, 190)])
    assert fed.lookups
    assert [tuple(found) for found in fed.view()] == [(1, "long", 2)]
