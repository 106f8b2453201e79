"""What init refuses to make, and small parts of what it makes."""

import re
import textwrap
from collections.abc import Mapping
from dataclasses import replace

import pytest
import yaml

from ch_sink.config.model import Config
from ch_sink.config.tree import known_keys
from ch_sink.errors import ChSinkError, ConfigError, StreamsFailed, TableError
from ch_sink.table.ddl import create_row_policy, create_table, made_engine, state_table
from ch_sink.table.model import Engine, Family
from ch_sink.table.spec import EngineChoice, TableSpec, plan_columns
from ch_sink.table.views import render, template
from ch_sink.types.column import TypeChoices
from ch_sink.types.connect import Field, RowSchema, SourceType
from ch_sink.types.sql import literal
from tests.support.engine import Engine as ClickHouse


def decimal(default: str, **parameters: str) -> SourceType:
    """A Connect Decimal of scale 2 with a default in base64."""
    named = {"scale": "2"} | {k.replace("__dot__", "."): v for k, v in parameters.items()}
    return SourceType(
        "bytes", "org.apache.kafka.connect.data.Decimal", tuple(named.items()), default=default, has_default=True
    )


ID = Field("id", SourceType("int64", optional=False))
V = Field("v", SourceType("string"))
SCHEMA = RowSchema((ID, V), (ID,))
SPEC = TableSpec("t", "x")
DOCUMENT = Field("j", SourceType("string", "io.debezium.data.Json"))
JSON = TypeChoices(json_type="JSON")


@pytest.mark.parametrize(
    ("schema", "spec", "part", "hint"),
    [
        (RowSchema((ID, V), ()), SPEC, "has no keys", "append"),
        (RowSchema((ID, V), ()), replace(SPEC, key_columns=("nope",)), "'nope' is not a column", "id, v"),
        (RowSchema((ID, V), (Field("", SourceType("int64")),)), SPEC, "without a name", "key_columns"),
        (SCHEMA, replace(SPEC, order_by=("v",), allow_nullable_key=True), "lacks the key column 'id'", "Add id"),
        (SCHEMA, replace(SPEC, order_by=("toString(id)",)), "lacks the key column 'id'", "Add id"),
        (RowSchema((V,), (V,)), SPEC, "key column 'v' can be null", "allow_nullable_key"),
        (SCHEMA, replace(SPEC, partition_by="v"), "'v' can be null", "allow_nullable_key"),
        (SCHEMA, replace(SPEC, order_by=("id", "v")), "'v' can be null", "allow_nullable_key"),
        (RowSchema((ID, Field("_version", SourceType("int64"))), (ID,)), SPEC, "a column '_version'", "by hand"),
        *(
            (RowSchema((ID, DOCUMENT), key), replace(SPEC, engine=engine, types=JSON), "'j' would be a JSON", "String")
            for engine, key in (
                (EngineChoice.COLLAPSING, (ID,)),
                (EngineChoice.VERSIONED_COLLAPSING, (ID,)),
                (EngineChoice.APPEND, ()),
            )
        ),
    ],
)
def test_refused_with_reason_and_remedy(schema: RowSchema, spec: TableSpec, part: str, hint: str) -> None:
    with pytest.raises(TableError, match=part) as caught:
        create_table(schema, spec)
    assert hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("schema", "setting"),
    [
        (RowSchema((ID, V), ()), {"engine": "append"}),
        (RowSchema((ID, V), (Field("", SourceType("int64")),)), {"key_columns": ["id"]}),
        (RowSchema((V,), (V,)), {"init": {"allow_nullable_key": True}}),
    ],
)
def test_of_a_file_of_many_topics_the_hint_is_an_exception_to_paste(
    schema: RowSchema, setting: Mapping[str, object]
) -> None:
    with pytest.raises(TableError) as caught:
        create_table(schema, SPEC)
    errors = {name: caught.value.of_one_topic(name) for name in ("shop.audit-log", "shop.b")}
    _, *pasted = textwrap.dedent(str(StreamsFailed(errors))).split("tables:")
    for topic, lines in zip(errors, pasted, strict=True):
        [exception] = yaml.safe_load(textwrap.dedent(lines.split("shop.b:")[0].strip("\n")))
        assert re.fullmatch(exception.pop("match"), topic)
        assert exception == setting
        assert set(setting) <= set(known_keys(Config))
    assert "tables:" not in (caught.value.hint or "")


def test_a_column_that_only_the_key_has_comes_first() -> None:
    extra = Field("__dbz__physicalTableIdentifier", SourceType("string", optional=False))
    columns = plan_columns(RowSchema((ID, V), (extra, ID)), SPEC)
    assert [c.name for c in columns][:3] == ["__dbz__physicalTableIdentifier", "id", "v"]


def test_a_primitive_key_is_named_by_configuration() -> None:
    schema = RowSchema((Field("id", SourceType("int64")), V), (Field("", SourceType("int64", optional=False)),))
    assert "ORDER BY (`id`)" in create_table(schema, replace(SPEC, key_columns=("id",)))


def test_a_key_column_is_never_low_cardinality_nor_null() -> None:
    mood = SourceType("string", "io.debezium.data.Enum", optional=True)
    schema = RowSchema((Field("m", mood), V), (Field("m", replace(mood, optional=False)),))
    assert [c.type for c in plan_columns(schema, SPEC)][:2] == ["String", "Nullable(String)"]


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("replacing", EngineChoice.REPLACING),
        ("ReplacingMergeTree", EngineChoice.REPLACING),
        ("sign_replacing", EngineChoice.SIGN_REPLACING),
        ("CollapsingMergeTree(sign)", EngineChoice.COLLAPSING),
        ("ReplicatedVersionedCollapsingMergeTree", EngineChoice.VERSIONED_COLLAPSING),
        ("MergeTree", EngineChoice.APPEND),
    ],
)
def test_engines_are_chosen_by_short_or_full_name(text: str, choice: EngineChoice) -> None:
    assert EngineChoice.parse(text) is choice


def test_an_unknown_engine_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        EngineChoice.parse("SummingMergeTree")
    assert "versioned-collapsing" in (caught.value.hint or "")


def test_row_policies_name_their_users() -> None:
    engine = made_engine(replace(SPEC, engine=EngineChoice.SIGN_REPLACING))
    sql = create_row_policy("d", "t", engine, ["all"], spare=["sink"], cluster="c")
    assert sql == (
        "CREATE ROW POLICY OR REPLACE `ch_sink_t` ON CLUSTER `c` ON `d`.`t` USING `_sign` != -1 TO ALL EXCEPT `sink`"
    )
    assert create_row_policy("d", "t", made_engine(SPEC), ["a", "b c"]).endswith(
        "USING `_is_deleted` = 0 TO `a`, `b c`"
    )


def test_no_row_policy_where_rows_do_not_tell() -> None:
    for engine in (
        Engine(Family.REPLACING, "ReplacingMergeTree", "v"),
        made_engine(replace(SPEC, engine=EngineChoice.APPEND)),
    ):
        with pytest.raises(TableError, match="no row policy"):
            create_row_policy("d", "t", engine, ["all"])


def test_literals_come_back(engine: ClickHouse) -> None:
    for text in ("", "it's", "back\\slash", "new\nline\ttab", "ünïcode 🦊", "$x ${y} {z:String}"):
        assert engine.rows(f"SELECT {literal(text)} AS x") == [{"x": text}]


def test_a_template_says_what_it_lacks() -> None:
    with pytest.raises(ChSinkError, match=r"sql/database\.sql has the place \$on_cluster"):
        render("database", database="x")
    with pytest.raises(ChSinkError, match=r"nothing\.sql is not installed"):
        template("nothing")


def test_state_tables_take_other_names() -> None:
    assert "`t`.`mine`" in state_table("ledger", replace(SPEC, state_tables={"ledger": "mine"}))
