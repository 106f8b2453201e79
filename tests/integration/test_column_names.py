"""Columns whose names hold quotes and control characters, or that the sink's own queries might use."""

import random
from dataclasses import replace

import pytest

from ch_sink.clickhouse import Client
from ch_sink.model.policy import policy_of
from ch_sink.trust.one_key import erased
from ch_sink.trust.purge import purged
from ch_sink.trust.repair import repaired
from ch_sink.trust.subject import Options
from ch_sink.trust.verify import verified
from ch_sink.types.sql import quote
from tests.support.evolving import Added, EvolvingSource
from tests.support.hand import PLACEHOLDER, Event, HandFed, mysql, postgres
from tests.support.hand_commands import MARKING, Hand, each_of, made
from tests.support.hand_steps import lose
from tests.support.hand_tables import APPEND, ENGINES, OWN, each_engine
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


IN_QUERIES = ("version", "each", "n", "top", "side", "kind", "step", "__key", "__row", "__times", "__copy", "__sign")
"""Key columns."""
TUPLES = ("t", "d", "r", "u")
"""Such a column of this name hides a table of this name: ``d.kind`` is its element."""


def in_queries(client: Client, database: str, engine: str, *, keyed: bool = True) -> Hand:
    """Three rows, of which the second is deleted."""
    clause, own = OWN.get(engine, APPEND)
    columns = [f"{name} Int64" for name in IN_QUERIES]
    columns += [f"{name} Tuple(id Int64, kind String, table_version String)" for name in TUPLES]
    element = {"id": 5, "kind": "extra", "table_version": "9"}
    rows = [{"id": i, "v": "a"} | dict.fromkeys(IN_QUERIES, i) | dict.fromkeys(TUPLES, element) for i in (1, 2, 3)]

    def event(op: str, row: dict[str, object], pos: int) -> Event:
        key = {name: row[name] for name in ("id", *IN_QUERIES)} if keyed else None
        return mysql(op, key, row if op == "d" else None, None if op == "d" else row, pos)

    events = [event("c", row, 10 * n) for n, row in enumerate(rows)]
    events.insert(2, event("d", rows[1], 15))
    order = f"ORDER BY ({', '.join(('id', *IN_QUERIES))})"
    chosen = policy_of(on_bad_record="fail")
    it = made(client, database, (clause, f"{', '.join(columns)}, {own}"), chosen, [events], order if keyed else "")
    it.read((0, 4))
    return it


@each_of("engine", [*ENGINES, "append"], "replacing", "versioned")
def test_names_of_the_sinks_queries(client: Client, database: str, engine: str) -> None:
    it = in_queries(client, database, engine)
    lose(it, 3)
    client.command(f"ALTER TABLE {database}.t UPDATE v = 'x' WHERE id = 1 SETTINGS mutations_sync = 2")
    subject = replace(it.subject, key=("id", *IN_QUERIES))
    with verified(subject, Options(patience=0)) as found:
        report = found.report
        assert (report.missing, report.extra, report.different) == (1, 0, 1)
        assert dict(report.columns) == {"v": 1}
    assert repaired(subject, Options(patience=0), apply=True).left == 0
    assert it.view() == [(1, "a"), (3, "a")]
    if engine != "append":
        purged(subject, it.own, {0: 4}, apply=True, settle=0.0)
    key = dict.fromkeys(("id", *IN_QUERIES), 1)
    assert erased(subject, it.own, key, apply=True, live=True).rows[f"{database}.t"] >= 1
    assert it.view() == [(3, "a")]


def test_names_of_the_sinks_queries_without_a_key(client: Client, database: str) -> None:
    it = in_queries(client, database, "append", keyed=False)
    lose(it, 3)
    subject = replace(it.subject, key=())
    with verified(subject, Options(patience=0)) as found:
        assert (found.report.missing, found.report.extra) == (1, 0)


@each_of("engine", MARKING, "sign")
def test_a_purge_of_a_key_that_needs_quotes(client: Client, database: str, engine: str) -> None:
    clause, own = OWN[engine]
    rows = [{"id": i, "v": "a", KEY: i} for i in (1, 2)]
    events = [mysql("c", {KEY: row[KEY]}, None, row, 10 * n) for n, row in enumerate(rows)]
    events += [mysql("d", {KEY: 1}, rows[0], None, 20), mysql("c", {KEY: 3}, None, {"id": 3, "v": "a", KEY: 3}, 30)]
    kind = clause, f"{quote(KEY)} Int64, {own}"
    it = made(client, database, kind, policy_of(on_bad_record="fail"), [events], f"ORDER BY {quote(KEY)}")
    it.read((0, 2), (0, 4))
    assert purged(it.subject, it.own, {0: 4}, apply=True, settle=0.0).rows > 0
    assert it.view() == [(2, "a"), (3, "a")]


@pytest.mark.parametrize("engine", ["replacing", "collapsing"])
def test_lookup_in_a_table_with_a_tuple_column_named_t(
    client: Client, database: str, own_tables: str, engine: str
) -> None:
    clause, own = OWN[engine]
    columns = "id Int64, v String, n Int64, t Tuple(id Int64)"
    ddl = f"({columns}, {own}) ENGINE = {clause} ORDER BY id SETTINGS non_replicated_deduplication_window = 9"
    fed = HandFed(client, database, own_tables, ddl, ("id",))
    row = {"id": 1, "v": "long", "n": 1, "t": {"id": 5}}
    fed.feed([postgres("c", {"id": 1}, None, row, 100, 90)])
    fed.restart()
    fed.feed([postgres("u", {"id": 1}, None, row | {"v": PLACEHOLDER, "n": 2}, 200, 190)])
    assert [tuple(found)[:3] for found in fed.query("SELECT id, v, n FROM {t} FINAL")] == [(1, "long", 2)]
