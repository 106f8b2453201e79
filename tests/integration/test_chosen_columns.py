"""Columns that the file chooses, renames, or that have odd names."""

import random
import re
from dataclasses import replace
from typing import Any

import pytest

from ch_sink.clickhouse import Client, detect
from ch_sink.errors import ClickHouseError, ConfigError, TableError
from ch_sink.model.policy import ColumnPolicy, policy_of
from ch_sink.table.spec import chosen_schema
from ch_sink.table.views import view_of
from ch_sink.trust.one_key import erased
from ch_sink.trust.purge import purged
from ch_sink.trust.repair import repaired
from ch_sink.trust.subject import Options
from ch_sink.trust.verify import verified
from ch_sink.types.connect import Field, RowSchema, SourceType
from ch_sink.types.sql import quote
from tests.support.choose import some
from tests.support.evolving import Added, EvolvingSource
from tests.support.fixtures import read_truth, topic_of
from tests.support.hand import APPEND, ENGINES, OWN, PLACEHOLDER, Event, HandFed, each_engine, mysql, postgres
from tests.support.hand_commands import MARKING, Hand, each_of, made
from tests.support.hand_steps import lose
from tests.support.recorded import CASES, KEYLESS, POLICY
from tests.support.stream import Feed, make_table, schema_of, typed_stream

INIT_ENGINES = ("replacing", "sign-replacing", "collapsing", "versioned-collapsing", "append")
EVERY = [
    (stream, table, engine)
    for stream, table in CASES
    for engine in (("append",) if table in KEYLESS else INIT_ENGINES)
    if (table, engine) != ("tr", "append")  # a history cannot be truncated
]
SHORT = [
    one
    for place, one in enumerate(EVERY)
    if place % 41 == 0
    or one == ("postgres-json_schema-wide", "all_types", "replacing")
    or (one[1] in KEYLESS and one[0].endswith(("plain", "avro")))
]


def choice(schema: RowSchema, stream: str) -> tuple[ColumnPolicy, str]:
    """Of the columns outside the key one is masked, one left out, one renamed; the key's first is renamed too.

    Text is masked if there is any, also because nothing but text goes into a text column of plain JSON.
    """
    keys = [f.name for f in schema.key]
    fields = [f for f in schema.fields if f.name not in keys]
    fields.sort(key=lambda f: (f.type.kind, f.type.name) != ("string", None))
    others = [f.name for f in fields]
    masked = others[0]
    if stream.endswith("plain") and fields[0].type.kind != "string":
        pytest.skip("the table has no column of text")
    return ColumnPolicy(
        exclude=tuple(others[1:2]),
        rename=tuple((name, f"my {name}") for name in (*others[:1], *others[2:3], *keys[:1])),
        mask=((masked, "sha256"),),
        add=(("tenant", "'eu'"), ("region", "7")),
    ), masked


@pytest.mark.sampled(2)
@pytest.mark.integration
@pytest.mark.parametrize(("stream", "table", "engine"), some(EVERY, SHORT))
def test_the_table_holds_what_was_chosen(client: Client, database: str, stream: str, table: str, engine: str) -> None:
    schema = schema_of(typed_stream(stream, table), table)
    chosen, masked = choice(schema, stream)
    as_text = replace(
        schema,
        fields=tuple(
            Field(f.name, SourceType("string", optional=f.type.optional)) if f.name == masked else f
            for f in schema.fields
        ),
    )
    policy = replace(POLICY, columns=chosen)
    plain = make_table(client, database, "plain", as_text, engine=engine, policy=POLICY)
    made = make_table(client, database, "chosen", chosen_schema(schema, chosen), engine=engine, policy=policy)
    for target, choices in ((plain, POLICY), (made, policy)):
        Feed(client, database, target, stream, topic_of(stream, table), choices).run()
    kept = [f.name for f in schema.fields if f.name not in chosen.exclude]
    names = {f.name for f in made.columns}
    assert not names & {*chosen.exclude, masked}
    wanted = ", ".join(f"lower(hex(SHA256({quote(n)})))" if n == masked else quote(n) for n in kept)
    shown = ", ".join(quote(chosen.target(n)) for n in kept)
    both = [
        sorted(str(r["r"]) for r in client.rows(f"SELECT toString(tuple({columns}, '')) AS r FROM {database}.{view}"))
        for columns, view in ((wanted, "plain_current"), (shown, "chosen_current"))
    ]
    assert both[0] == both[1]
    assert both[0] or not read_truth(stream.split("-")[0])[table].rows
    added = client.rows(f"SELECT DISTINCT tenant, region FROM {database}.chosen_current")
    assert [tuple(row.values()) for row in added] == ([("eu", 7)] if both[0] else [])


@pytest.mark.sampled(1)
@pytest.mark.integration
@pytest.mark.parametrize(
    ("engine", "table"),
    [
        ("replacing", "kc_full"),
        ("collapsing", "kc_full"),
        ("append", "kc_full"),
        ("replacing", "tr"),
        ("collapsing", "tr"),
    ],
)
def test_rows_of_two_topics_in_one_table_stay_apart(client: Client, database: str, engine: str, table: str) -> None:
    """Both topics have the same keys, and ``tr`` is truncated; each one's rows are those that it has alone."""
    streams = {"schema": "postgres-json_schema", "avro": "postgres-avro"}
    schema = schema_of(streams["schema"], table)
    columns = ", ".join(quote(f.name) for f in schema.fields)
    wanted: dict[str, list[str]] = {}
    for name, stream in streams.items():
        alone = make_table(client, database, name, schema, engine=engine, policy=POLICY)
        Feed(client, database, alone, stream, topic_of(stream, table), POLICY).run()
        rows = client.rows(f"SELECT toString(tuple({columns})) AS r FROM {database}.{name}_current")
        wanted[name] = sorted(str(row["r"]) for row in rows)
        assert wanted[name]
    for name, stream in streams.items():
        policy = replace(POLICY, columns=ColumnPolicy(add=(("_source", f"'{name}'"),), source=("_source",)))
        shared = chosen_schema(schema, policy.columns)
        target = make_table(client, database, "both", shared, engine=engine, policy=policy)
        Feed(client, database, target, stream, topic_of(stream, table), policy).run()
        if name == "schema" and engine != "append":  # rows older than any truncate, of a topic without one
            third = "SELECT * REPLACE ('third' AS _source, toUInt128(1) AS _version)"
            client.command(f"INSERT INTO {database}.both {third} FROM {database}.both FINAL")
            wanted["third"] = wanted["schema"]
    for name, rows_of_one in wanted.items():
        rows = client.rows(
            f"SELECT toString(tuple({columns})) AS r FROM {database}.both_current WHERE _source = '{name}'"
        )
        assert sorted(str(row["r"]) for row in rows) == rows_of_one


@pytest.mark.integration
def test_a_table_that_does_not_fit_the_choice_is_refused(client: Client, database: str) -> None:
    client.command(
        f"CREATE TABLE {database}.t (id Int64, phone UInt64, born Nullable(Date), tenant String, secret String, "
        "_version UInt128, _is_deleted UInt8) ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY id"
    )
    for name, kind in (("phone", "UInt64"), ("born", "Nullable(Date)")):
        masked = replace(POLICY, columns=ColumnPolicy(mask=((name, "sha256"),)))
        with pytest.raises(TableError, match=rf"column '{name}' of .* is a {re.escape(kind)}: a mask is text") as found:
            detect(client, database, "t", masked)
        [statement] = re.findall(r"ALTER TABLE .*?(?=\.(?: |$))", found.value.hint)
        client.command(statement)
        detect(client, database, "t", masked)
    for text in ("eu", "now()", "id", "'a"):
        with pytest.raises(ConfigError, match=r"columns.add.tenant: .* is not a constant"):
            detect(client, database, "t", replace(POLICY, columns=ColumnPolicy(add=(("tenant", text),))))
    for text in ("18446744073709551615", "1.5", "'a'"):
        with pytest.raises(ClickHouseError, match=r"columns.add for .*"):
            detect(client, database, "t", replace(POLICY, columns=ColumnPolicy(add=(("id", text),))))
    chosen = ColumnPolicy(exclude=("secret",), rename=(("phone", "nr"),), add=(("tenant", "'e''u'"), ("none", "1")))
    found = detect(client, database, "t", replace(POLICY, columns=chosen))
    assert [(name, value.as_py()) for name, value in found.added] == [("tenant", b"e'u")]
    assert [c.name for c in found.source_columns] == ["id", "born", "tenant"]


pytestmark = pytest.mark.integration
KEY, TEXT, LATER = 'the "id"\\', "line\nbreak\t'`", '\x01 "added" \\n'
EVOLVING = policy_of(evolve="add_columns", on_bad_record="fail")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("schemas", [True, False])
@pytest.mark.parametrize("engine", ["replacing", "versioned-collapsing", "append"])
def test_init_insert_and_evolution(client: Client, database: str, engine: str, schemas: bool) -> None:
    columns = {KEY: Added("int64", False), TEXT: Added("string")}
    source = EvolvingSource(schemas=schemas, key=KEY, columns=columns)
    source.write(1, **{TEXT: "a"})
    source.write(2, **{TEXT: 'b "\\'})
    target = make_table(client, database, "t", source.declared(), engine=engine, policy=EVOLVING)
    source.add(LATER, Added("int64"))
    source.write(3, **{TEXT: "c", LATER: 7})
    source.write(1, **{TEXT: None, LATER: 8})
    source.delete(2)
    feed = Feed(client, database, target, f"{database}/hand", "evolving", EVOLVING, source.records())
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


IN_QUERIES = (
    "version",
    "each",
    "n",
    "top",
    "side",
    "kind",
    "step",
    "__key",
    "__row",
    "__times",
    "__copy",
    "__sign",
    "_copy",
)
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


@pytest.mark.long
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


@pytest.mark.long
def test_names_of_the_sinks_queries_without_a_key(client: Client, database: str) -> None:
    it = in_queries(client, database, "append", keyed=False)
    client.command(view_of(it.subject.table, ()))
    assert [tuple(r.values()) for r in client.rows(f"SELECT id, _copy FROM {database}.t_current ORDER BY id")] == [
        (1, 1),
        (3, 3),
    ]
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


@pytest.mark.parametrize("freed", [{"exclude": ("tenant",)}, {"rename": (("tenant", "its_tenant"),)}])
@pytest.mark.parametrize("engine", ["replacing", "collapsing"])
def test_a_constant_takes_the_name_that_a_source_column_gave_up(
    client: Client, database: str, own_tables: str, engine: str, freed: dict[str, Any]
) -> None:
    """It is the key that tells topics apart: without it their rows would replace each other."""
    clause, own = OWN[engine]
    columns = "tenant String, id Int64, its_tenant String, v String"
    end = "ORDER BY (tenant, id) SETTINGS non_replicated_deduplication_window = 9"
    ddl = f"({columns}, {own}) ENGINE = {clause} {end}"
    policy = policy_of(add=(("tenant", "'eu'"),), source_columns=("tenant",), **freed)
    fed = HandFed(client, database, own_tables, ddl, ("id",), policy)
    fed.feed([mysql("c", {"id": n}, None, {"id": n, "tenant": "its own", "v": "a"}, 10 * n) for n in (1, 2)])
    fed.feed([mysql("u", {"id": 1}, {"id": 1, "tenant": "its own", "v": "a"}, {"id": 1, "tenant": "x", "v": "b"}, 30)])
    kept = {1: "x", 2: "its own"} if "rename" in freed else {1: "", 2: ""}
    assert sorted(tuple(found)[:4] for found in fed.view()) == [("eu", 1, kept[1], "b"), ("eu", 2, kept[2], "a")]
