"""The way of a user with a table of their own: CREATE TABLE, ``init --apply``, then the stream; in every format."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from ch_sink.cli.init import apply_plan, plan_one
from ch_sink.cli.output import Output
from ch_sink.clickhouse import Client, detect, run_statement
from ch_sink.config import Config
from ch_sink.discovery.findings import _columns
from ch_sink.discovery.init_plan import retyped_findings
from ch_sink.discovery.look import examine
from ch_sink.model.change import Records
from ch_sink.table.ddl import init_statements
from ch_sink.table.evolve import existing_statements
from ch_sink.table.fits import type_findings
from ch_sink.table.spec import TableSpec
from ch_sink.trust.successor import Successor
from ch_sink.types import WIDE, clickhouse_type
from ch_sink.types.build import default_sql
from ch_sink.types.chtype import parse_type
from ch_sink.types.connect import Field, RowSchema, SourceType
from ch_sink.types.sql import literal, quote
from tests.integration.test_flattened import by_partition
from tests.support.busy import decimal_and_time
from tests.support.choose import some
from tests.support.fixtures import partitions, registry, topic_of, topics
from tests.support.recorded import KEYLESS, POLICY, STREAMS, equal, tables
from tests.support.smt import transformation
from tests.support.stream import Feed, make_table, schema_of, typed_stream
from tests.unit.discovery.test_obstacles import config

_SYSTEM = {
    "ReplacingMergeTree(_version, _is_deleted)": "_version UInt128, _is_deleted UInt8",
    "MergeTree": "_op LowCardinality(String), _sign Int8, _version UInt128",
}


def create_by_hand(client: Client, database: str, table: str, schema: RowSchema) -> None:
    """Create the table that a user who knows the source's types (``schema``) would write."""
    key = {f.name for f in schema.key}
    columns = []
    for field in schema.fields:
        kind = clickhouse_type(field.type, key=field.name in key)
        noted = _noted_by_hand(field.type, kind)
        comment = f" COMMENT {literal(noted)}" if noted else ""
        default = default_sql(field.type, kind) if field.name not in key else None
        shown = f" DEFAULT {default}" if default else ""
        columns.append(f"{quote(field.name)} {kind}{shown}{comment}")
    engine = "ReplacingMergeTree(_version, _is_deleted)" if key else "MergeTree"
    order = ", ".join(quote(f.name) for f in schema.key)
    client.command(
        f"CREATE TABLE {quote(database)}.{quote(table)} ({', '.join(columns)}, {_SYSTEM[engine]}) "
        f"ENGINE = {engine} ORDER BY ({order})"
    )


def _noted_by_hand(source: SourceType, kind: str) -> str:
    """What docs/types.md asks for where the column's type cannot say it: values in a String that are not text."""
    if parse_type(kind).bare.name == "String" and (source.kind != "string" or WIDE in source.parameters):
        return source.to_comment()
    return "the user's own" if source.kind == "boolean" else ""


def described(client: Client, database: str, table: str) -> list[tuple[str, ...]]:
    """Name, type and comment of every column."""
    rows = client.rows(
        "SELECT name, type, comment FROM system.columns WHERE database = {d:String} AND table = {t:String} "
        "ORDER BY position",
        {"d": database, "t": table},
    )
    return [tuple(map(str, row.values())) for row in rows]


pytestmark = pytest.mark.integration

BUSY = ("mariadb-busy-json_plain", "postgres-busy-json_plain")
SHORT = ("postgres-json_plain",)
FLATTENED = ("mariadb-json_plain", "postgres-json_plain", "mariadb-json_schema", "postgres-json_schema-kc")


def of_which_short(every: Sequence[str], short: Sequence[str]) -> list[Any]:
    return some([(stream,) for stream in every], [(stream,) for stream in short])


@pytest.fixture
def database(client: Client, request: pytest.FixtureRequest) -> Iterator[str]:
    name = "by_hand"
    client.command(f"CREATE DATABASE {name}")
    yield name
    client.command(f"DROP DATABASE {name} SYNC")


def init_apply(client: Client, database: str, table: str, stream: str, records: Mapping[int, Records]) -> None:
    """``ch_sink init FILE --apply``, but for reading the sample from Kafka."""
    config = Config.model_validate(
        {
            "kafka": {"topic": "t", "bootstrap.servers": "localhost:1"},
            "clickhouse": {"url": "http://localhost:1", "database": database, "table": table},
        }
    )
    seen = examine(list(records.values()), "t", config.policy(), registry=registry(stream))
    plan = plan_one(Output(), config, seen, client)
    assert plan.findings == (), (stream, table)
    apply_plan(Output(), client, plan, quiet=True)


def difference(
    client: Client, database: str, stream: str, table: str, schema: RowSchema, records: Mapping[int, Records]
) -> list[str]:
    """What differs from the source in the end, and what ``init`` did to the table that it should not have."""
    create_by_hand(client, database, table, schema)
    before = described(client, database, table)
    init_apply(client, database, table, stream, records)
    after = described(client, database, table)
    found = [] if after == before else [f"init changed {set(before) - set(after)} to {set(after) - set(before)}"]
    target = detect(client, database, table, POLICY)
    feed = Feed(client, database, target, stream, f"t.{table}", POLICY, records)
    feed.run()
    source, _, kind = stream.partition("-")
    return found + equal(client, database, f"{source}-busy" if kind.startswith("busy") else source, source, table)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("stream", of_which_short(STREAMS, SHORT))
def test_recorded_tables_made_by_hand_equal_their_source(client: Client, database: str, stream: str) -> None:
    wrong: dict[str, list[str]] = {}
    for table in tables(stream):
        schema = schema_of(typed_stream(stream, table), table)
        found = difference(client, database, stream, table, schema, partitions(stream, topic_of(stream, table)))
        wrong |= {table: found} if found else {}
    assert wrong == {}


@pytest.mark.long
def test_init_before_the_topic_has_records(client: Client, database: str) -> None:
    """It leaves the tables as they are, then and once more when the stream has filled them."""
    stream = "mariadb-json_plain"
    wrong: dict[str, list[str]] = {}
    for table in tables(stream):
        schema = schema_of(typed_stream(stream, table), table)
        if not schema.key:
            continue
        records = partitions(stream, topic_of(stream, table))
        create_by_hand(client, database, table, schema)
        init_apply(client, database, table, stream, {})
        before = described(client, database, table)
        Feed(client, database, detect(client, database, table, POLICY), stream, f"t.{table}", POLICY, records).run()
        found = equal(client, database, "mariadb", "mariadb", table)
        init_apply(client, database, table, stream, records)
        found += equal(client, database, "mariadb", "mariadb", table)
        found += [] if described(client, database, table) == before else ["init changed it"]
        wrong |= {table: found} if found else {}
    assert wrong == {}


@pytest.mark.parametrize("stream", of_which_short(BUSY, ()))
def test_busy_tables_made_by_hand_equal_their_source(client: Client, database: str, stream: str) -> None:
    for table in ("acct", "hot"):
        schema = schema_of(stream, table, keep=decimal_and_time(table))
        records = partitions(stream, topic_of(stream, table))
        assert difference(client, database, stream, table, schema, records) == []


@pytest.mark.long
@pytest.mark.parametrize("stream", of_which_short(FLATTENED, FLATTENED[:1]))
def test_flattened_tables_made_by_hand_equal_their_source(client: Client, database: str, stream: str) -> None:
    wrong: dict[str, list[str]] = {}
    flatten = transformation(stream.split("-")[0], "rewrite")
    for table in sorted(set(tables(stream)) - {"tr", "ac", *KEYLESS}):
        records = by_partition(flatten.apply(topics(stream)[topic_of(stream, table)]))
        schema = schema_of(typed_stream(stream, table), table)
        found = difference(client, database, stream, table, schema, records)
        wrong |= {table: found} if found else {}
    assert wrong == {}


@pytest.mark.long
def test_nothing_is_guessed_about_columns_of_a_table_made_by_hand(client: Client, database: str) -> None:
    """Types that the values of plain JSON suggest are narrower, wider or wrong: the columns keep theirs."""
    stream, table = "mariadb-busy-json_plain", "acct"
    fields = {"price": SourceType("float32"), "updated": SourceType("int64", "io.debezium.time.MicroTimestamp")}
    found = schema_of(stream, table)
    schema = RowSchema(tuple(Field(f.name, fields.get(f.name, f.type)) for f in found.fields), found.key)
    create_by_hand(client, database, table, schema)
    before = described(client, database, table)
    init_apply_ignoring_values(client, database, table, stream)
    assert described(client, database, table) == before


def init_apply_ignoring_values(client: Client, database: str, table: str, stream: str) -> None:
    config = Config.model_validate(
        {
            "kafka": {"topic": "t", "bootstrap.servers": "localhost:1"},
            "clickhouse": {"url": "http://localhost:1", "database": database, "table": table},
        }
    )
    records = partitions(stream, topic_of(stream, table))
    seen = examine(list(records.values()), "t", config.policy())
    apply_plan(Output(), client, plan_one(Output(), config, seen, client), quiet=True)


def test_source_types_are_noted_outside_the_comments_and_comments_still_count(client: Client, database: str) -> None:
    """What a table made by init states is the same as what one of an earlier version states in its comments."""
    stream, table = "mariadb-json_schema-wide", "all_types"
    schema = schema_of(stream, table)
    made = make_table(client, database, table, schema, policy=POLICY)
    declared = {f.name: SourceType.from_comment(f.type.to_comment()) for f in schema.fields}
    assert {c.name: c.stated for c in made.source_columns} == declared
    assert not [comment for _, _, comment in described(client, database, table) if "debezium" in comment]
    client.command(f"DROP TABLE {database}.ch_sink_columns SYNC")
    bare = detect(client, database, table, POLICY)
    assert {c.stated for c in bare.source_columns} == {None}
    comments = ", ".join(f"COMMENT COLUMN {quote(f.name)} {literal(f.type.to_comment())}" for f in schema.fields)
    client.command(f"ALTER TABLE {database}.{table} {comments}")
    earlier = detect(client, database, table, POLICY)
    assert {c.name: c.stated for c in earlier.source_columns} == declared
    Feed(client, database, earlier, "mariadb-json_plain", topic_of("mariadb-json_plain", table), POLICY).run()
    assert equal(client, database, "mariadb", "mariadb-json_plain", table) == []


def test_types_noted_for_an_earlier_table_of_the_name_count_for_no_other(client: Client, database: str) -> None:
    """Milliseconds were noted; the table that the user creates later under the name holds microseconds."""
    key = Field("id", SourceType("int64", optional=False))
    moment = Field("at", SourceType("int64", "io.debezium.time.Timestamp"))
    spec = TableSpec(database, "t")

    def created() -> dict[str, str]:
        for statement in init_statements(RowSchema((key, moment), (key,)), spec):
            client.command(statement.sql)
        return noted("t")

    def noted(name: str) -> dict[str, str]:
        return {c.name: c.note for c in detect(client, database, name, POLICY).columns if c.note}

    types = {"id": 'int64 {"optional":false}', "at": "int64 io.debezium.time.Timestamp"}
    assert created() == types
    client.command(f"ALTER TABLE {database}.t MODIFY COLUMN at Nullable(DateTime64(6, 'UTC'))")
    assert noted("t") == types  # it is the same table
    client.command(f"RENAME TABLE {database}.t TO {database}.other")
    assert noted("other") == types  # also under another name
    following = Successor(client, detect(client, database, "other", POLICY), POLICY, f"{database}.ch_sink_columns")
    following.create()
    following.take_place(lambda _: None)
    client.command(f"RENAME TABLE {database}.other TO {database}.t")
    assert noted("t") == types  # as its successor has, whose name the former one has now
    engine = "ReplacingMergeTree(_version, _is_deleted) ORDER BY id"
    for kind, expected in (("DateTime64(6)", {"id"}), ("Nullable(DateTime64(3, 'UTC'))", {"id", "at"})):
        client.command(f"DROP TABLE {database}.t SYNC")
        columns = f"id Int64, at {kind}, _version UInt128, _is_deleted UInt8"
        client.command(f"CREATE TABLE {database}.t ({columns}) ENGINE = {engine}")
        assert set(noted("t")) == expected
    client.command(f"DROP TABLE {database}.t SYNC")
    assert created() == types


def test_a_change_of_a_column_that_the_server_refuses_keeps_nothing_from_being_made(
    client: Client, database: str, caplog: pytest.LogCaptureFixture
) -> None:
    """``check`` only warns of a column that holds no null; its projection does not let the server make it Nullable."""
    client.command(
        f"CREATE TABLE {database}.t (id Int64, v String, _version UInt128, _is_deleted UInt8, "
        "PROJECTION p (SELECT v, count() GROUP BY v)) ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY id "
        "SETTINGS deduplicate_merge_projection_mode = 'rebuild'"
    )
    key, text = Field("id", SourceType("int64", optional=False)), SourceType("string", optional=True)
    schema = RowSchema((key, Field("v", text), Field("w", text)), (key,))
    statements = existing_statements(detect(client, database, "t", POLICY), schema, TableSpec(database, "t"))
    outcomes = [(run_statement(client, one), one.title) for one in statements]
    assert [title for outcome, title in outcomes if outcome == "refused"] == ["alter t"]
    assert {("created", "table ch_sink_ledger"), ("changed", "alter t"), ("created", "view t_current")} <= {*outcomes}
    assert "MODIFY COLUMN `v` Nullable(String)" in caplog.text


@pytest.mark.parametrize(
    ("was", "now"),
    [
        (SourceType("int32", "io.debezium.time.Time"), SourceType("int64", "io.debezium.time.MicroTime")),
        (SourceType("float64"), SourceType("int64")),
        (SourceType("int32"), SourceType("string")),
    ],
)
def test_what_stops_the_stream_at_another_type_stays_noted(
    client: Client, database: str, was: SourceType, now: SourceType
) -> None:
    """Else the stream would go on after ``init``, and store values that the column does not hold as they are."""
    key = Field("id", SourceType("int64", optional=False))
    made = make_table(client, database, "t", RowSchema((key, Field("x", was)), (key,)), policy=POLICY)
    schema, before = RowSchema((key, Field("x", now)), (key,)), made.column("x")
    found = retyped_findings(made, schema, alone=False)
    assert [(name, one.level) for name, one in found.items()] == [("x", "fail")]
    assert "resync CONFIG --against source" in (found["x"].remedy or "")
    for statement in existing_statements(made, schema, TableSpec(database, "t"), keep=["x"]):
        client.command(statement.sql)
    assert detect(client, database, "t", POLICY).column("x") == before
    assert retyped_findings(made, RowSchema((key, Field("x", was)), (key,)), alone=False) == {}


def test_of_two_changes_of_a_column_that_check_knows_it_names_one(client: Client, database: str) -> None:
    """``init`` only lets null in; what the source sends needs another type, and the table is to have it in the end."""
    client.command(
        f"CREATE TABLE {database}.t (id Int64, at DateTime('UTC'), w Int32, _version UInt128, _is_deleted UInt8) "
        "ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY id"
    )
    key, table = Field("id", SourceType("int64", optional=False)), detect(client, database, "t", POLICY)
    moment, number = SourceType("int64", "io.debezium.time.MicroTimestamp"), SourceType("int64")
    schema = RowSchema((key, Field("at", moment), Field("w", number)), (key,))
    types = type_findings(table, {f.name: f.type for f in schema.fields}, ("id",), POLICY.values)
    said = [found.remedy for found in types if found.remedy]
    said += [found.remedy for found in _columns(config(), client, table, schema, " ".join(said)) if found.remedy]
    for statement in dict.fromkeys(line for text in said for line in text.splitlines() if line.startswith("ALTER")):
        client.command(statement.rstrip(";"))
    altered = detect(client, database, "t", POLICY)
    assert [c.type for c in altered.columns[1:3]] == ["Nullable(DateTime64(6, 'UTC'))", "Nullable(Int64)"]
