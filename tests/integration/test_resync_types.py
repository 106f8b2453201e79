"""`resync` gives columns the types that the source has now, and fills new ones only with values that are known."""

import os
import socket
from dataclasses import replace

import pytest

from ch_sink.clickhouse import Client, detect
from ch_sink.errors import StreamFailed
from ch_sink.model.policy import policy_of
from ch_sink.ports import Alive
from ch_sink.stream.claims import born
from ch_sink.trust.resync import resynced
from ch_sink.types.connect import Field, RowSchema, SourceType
from tests.support.choose import some
from tests.support.hand import OWN
from tests.support.hand_steps import Rows, begun, position, shaped

pytestmark = pytest.mark.integration


def test_a_column_that_was_dropped_is_made_for_the_present_type(client: Client, database: str) -> None:
    it = begun(client, database, "collapsing")
    client.command(f"ALTER TABLE {database}.t DROP COLUMN v")
    it.source = Rows([(1, "7"), (2, "8")], position(131), types={"id": "bigint", "v": "bigint"})
    fields = (Field("v", SourceType("int64", "", optional=True)),)
    schema = RowSchema(fields, (Field("id", SourceType("int64", "")),))
    refill = shaped(it)
    done = resynced(replace(refill, subject=replace(refill.subject, schema=schema)), apply=True)
    assert done.shape == ("columns added: v",)
    assert client.rows(f"SELECT id, v FROM {database}.t_current ORDER BY id") == [{"id": 1, "v": 7}, {"id": 2, "v": 8}]


@pytest.mark.parametrize("engine", some([(e,) for e in OWN], [("collapsing",)]))
def test_columns_get_the_present_type_of_the_source(client: Client, database: str, engine: str) -> None:
    """Also one of ORDER BY, which no ALTER can change."""
    it = begun(client, database, engine)
    client.command(f"""ALTER TABLE {database}.t COMMENT COLUMN id 'mine debezium: int64 {{"optional":false}}'""")
    it.source = Rows([("1", "a"), ("x", "b"), ("3", "d")], position(131), types={"id": "varchar", "v": "varchar"})
    schema = RowSchema((Field("v", SourceType("string")),), (Field("id", SourceType("string", "", optional=False)),))
    refill = shaped(it)
    refill = replace(refill, subject=replace(refill.subject, schema=schema))
    it.states.beat({it.feed.name: Alive("other", socket.gethostname(), os.getpid(), born(os.getpid()))})
    with pytest.raises(StreamFailed, match="a job runs"):
        resynced(refill, apply=False)
    it.states.beats.clear()
    done = resynced(refill, apply=True)
    assert (done.shape, str(done.moved)) == (("column id: Int64 -> String",), "2 rows gone, 1 new, 1 with other values")
    shown = client.rows(f"SELECT id, v FROM {database}.t_current ORDER BY id")
    assert shown == [{"id": "1", "v": "a"}, {"id": "3", "v": "d"}, {"id": "x", "v": "b"}]
    columns = detect(client, database, "t", policy_of()).columns
    assert [c.comment.partition(" {")[0] for c in columns if c.comment] == ["mine debezium: string"]


def test_an_index_of_a_column_that_gets_another_type_stays(client: Client, database: str) -> None:
    it = begun(client, database, "replacing")
    column = "n Nullable(Int32) COMMENT 'debezium: int32'"
    client.command(f"ALTER TABLE {database}.t ADD COLUMN {column} AFTER v, ADD INDEX i n TYPE minmax")
    types = {"id": "bigint", "v": "varchar", "n": "varchar"}
    it.source = Rows([(1, "a", "7"), (2, "b", "x")], position(131), types=types)
    fields = Field("v", SourceType("string")), Field("n", SourceType("string", default="none", has_default=True))
    schema = RowSchema(fields, (Field("id", SourceType("int64", "", optional=False)),))
    refill = shaped(it)
    refill = replace(refill, subject=replace(refill.subject, schema=schema))
    assert resynced(refill, apply=True).shape == ("column n: Nullable(Int32) -> Nullable(String)",)
    assert client.rows(f"SELECT n FROM {database}.t_current ORDER BY id") == [{"n": "7"}, {"n": "x"}]
    indexes = f"SELECT expr FROM system.data_skipping_indices WHERE database = '{database}' AND table = 't'"
    assert client.rows(indexes) == [{"expr": "n"}]
    assert dict(detect(client, database, "t", policy_of()).defaults)["n"] is not None
    client.command(f"INSERT INTO {database}.t (id, v) VALUES (9, 'z')")
    assert client.rows(f"SELECT n FROM {database}.t WHERE id = 9") == [{"n": "none"}]


def test_an_array_is_remade_for_another_type_and_stays_one_that_cannot_be_null(client: Client, database: str) -> None:
    """The server converts neither. A column may also keep its type, and mean another one of the source."""
    it = begun(client, database, "replacing")
    items = SourceType("array", "", optional=False, items=SourceType("int64", ""))
    for name in ("a", "b"):
        column = f"{name} Array(Int64) DEFAULT [7] COMMENT '{items.to_comment()}'"
        client.command(f"ALTER TABLE {database}.t ADD COLUMN {column} AFTER id")
    time = SourceType("int64", "io.debezium.time.MicroTime", optional=False)
    client.command(f"ALTER TABLE {database}.t ADD COLUMN n Int64 COMMENT '{replace(time, name='').to_comment()}'")
    columns = {"v": SourceType("string"), "a": replace(items, optional=True), "b": SourceType("string", ""), "n": time}
    key = Field("id", SourceType("int64", "", optional=False))
    schema = RowSchema(tuple(Field(name, kind) for name, kind in columns.items()), (key,))
    refill = replace(shaped(it), subject=replace(it.subject, schema=schema))
    shape = refill.shape()
    assert shape is not None
    meaning = "column n: Int64 of int64 io.debezium.time.MicroTime"
    assert shape.changes == ("column b: Array(Int64) -> Nullable(String)", meaning)
    made = refill.successor.create(shape)
    assert [(c.name, c.type) for c in made.columns if c.name in "ab"] == [
        ("b", "Nullable(String)"),
        ("a", "Array(Int64)"),
    ]
    refill.successor.drop()
    client.command(f"ALTER TABLE {database}.t ADD INDEX i arraySum(b) TYPE minmax")
    with pytest.raises(StreamFailed, match=r"`t` cannot get its new shape: .*index i") as refused:
        refill.successor.create(shape)
    assert "DROP INDEX" in str(refused.value.hint)
    refill.successor.drop()


def test_a_topic_does_not_fill_a_new_column_whose_value_in_earlier_rows_it_does_not_state(
    client: Client, database: str
) -> None:
    it = begun(client, database, "replacing")
    fields = (Field("v", SourceType("string")), Field("n", SourceType("int32", optional=False)))
    refill = shaped(it)
    schema = RowSchema(fields, (Field("id", SourceType("int64", optional=False)),))
    refill = replace(refill, subject=replace(refill.subject, schema=schema))
    with pytest.raises(StreamFailed, match="in the new column 'n' that were there before it") as caught:
        resynced(refill, apply=False, against="topic")
    assert "ADD COLUMN `n` Int32 DEFAULT …; or use --against source" in str(caught.value.hint)
    assert refill.wanted is not None
    spec = replace(refill.wanted.spec, added_fields=("n",))  # every event has such a field
    resynced(replace(refill, wanted=replace(refill.wanted, spec=spec)), apply=False, against="topic")
    client.command(f"ALTER TABLE {database}.t ADD COLUMN n Int32 DEFAULT 5 AFTER v")
    refill = replace(shaped(it), subject=replace(it.subject, schema=schema))
    resynced(refill, apply=True, against="topic")
    assert client.rows(f"SELECT DISTINCT n FROM {database}.t FINAL") == [{"n": 5}]
