"""Columns that are left out, renamed, masked and added: recorded streams on every engine.

Each stream is applied twice: to a table with the source's columns, and to one with chosen columns. What the second
shows must be what SQL makes of the first, in which the masked column is plain text.
"""

from dataclasses import replace

import pytest

from ch_sink.clickhouse import Client, detect
from ch_sink.errors import ConfigError, TableError
from ch_sink.model.policy import ColumnPolicy
from ch_sink.table.spec import chosen_schema
from ch_sink.types.connect import Field, RowSchema, SourceType
from ch_sink.types.sql import quote
from tests.support.choose import some
from tests.support.fixtures import read_truth, topic_of
from tests.support.recorded import CASES, KEYLESS, POLICY
from tests.support.stream import Feed, make_table, schema_of, typed_stream

ENGINES = ("replacing", "sign-replacing", "collapsing", "versioned-collapsing", "append")
EVERY = [
    (stream, table, engine)
    for stream, table in CASES
    for engine in (("append",) if table in KEYLESS else ENGINES)
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
        f"CREATE TABLE {database}.t (id Int64, phone UInt64, tenant String, secret String, _version UInt128, "
        "_is_deleted UInt8) ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY id"
    )
    with pytest.raises(TableError, match=r"column 'phone' of .* is a UInt64: a mask is text"):
        detect(client, database, "t", replace(POLICY, columns=ColumnPolicy(mask=(("phone", "sha256"),))))
    for text in ("eu", "now()", "id", "'a"):
        with pytest.raises(ConfigError, match=r"columns.add.tenant: .* is not a constant"):
            detect(client, database, "t", replace(POLICY, columns=ColumnPolicy(add=(("tenant", text),))))
    chosen = ColumnPolicy(exclude=("secret",), rename=(("phone", "nr"),), add=(("tenant", "'e''u'"), ("none", "1")))
    found = detect(client, database, "t", replace(POLICY, columns=chosen))
    assert [(name, value.as_py()) for name, value in found.added] == [("tenant", b"e'u")]
    assert [c.name for c in found.source_columns] == ["id", "tenant"]
