"""`changes` and ``format("ch_sink")`` on a real Spark, classic and Connect."""

import re
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import pytest

from ch_sink.errors import ConfigError
from ch_sink.spark import changes, history
from tests.support.frames import Shelf

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.slow]

SCHEMA = "id long, status string, _change_type string, _commit_version long"
FEED = [
    *((n, "new", "insert", 1) for n in range(50)),
    *((n, "new", "update_preimage", 2) for n in range(10)),
    *((n + (100 if n < 5 else 0), "paid", "update_postimage", 2) for n in range(10)),
    *((n, "new", "delete", 3) for n in range(20, 30)),
]
TRUTH = {n: "new" for n in range(10, 50) if n // 10 != 2} | {n + (100 if n < 5 else 0): "paid" for n in range(10)}
DELTA: dict[str, Any] = {"keys": "id", "op": "_change_type", "sequence_by": "_commit_version"}


needs_data_sources = pytest.mark.skipif(
    find_spec("pyspark.sql.datasource") is None, reason="this Spark has no Python data sources"
)


@pytest.fixture(params=["spark", "connect"])
def session(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def config(shelf: Shelf, **more: Any) -> dict[str, Any]:
    return {key: part for key, part in shelf.config(**more).items() if key != "kafka"}


def frame(session: Any, rows: Sequence[tuple[Any, ...]], schema: str = SCHEMA) -> Any:
    return session.createDataFrame(list(rows), schema)


def rows_of(session: Any, shelf: Shelf) -> int:
    """How many rows were sent, as the ledger says."""
    return int(history(session, config(shelf)).agg({"rows": "sum"}).collect()[0][0])


def test_changes_are_applied_once_in_whatever_batches(session: Any, shelf: Shelf) -> None:
    apply = changes(config(shelf), **DELTA)
    apply(frame(session, FEED[40:]), 0)
    apply(frame(session, FEED), 1)
    assert shelf.rows() == TRUTH
    stored, recorded = shelf.count(), rows_of(session, shelf)
    apply(frame(session, FEED[::-1]).repartition(5), 2)
    assert (shelf.count(), rows_of(session, shelf)) == (stored, recorded)


def test_deletes_by_an_expression_and_columns_that_are_left_out(session: Any, shelf: Shelf) -> None:
    rows = [(1, "a", "x", 1), (2, "b", "x", 1), (1, None, "gone", 2)]
    apply = changes(
        config(shelf),
        keys=["id"],
        sequence_by="at",
        apply_as_deletes="kind = 'gone'",
        except_column_list=["kind", "at"],
        ignore_null_updates_column_list="status",
    )
    apply(frame(session, rows, "id long, status string, kind string, at int"), 0)
    assert shelf.rows() == {2: "b"}
    apply(frame(session, [(2, None, "x", 3)], "id long, status string, kind string, at int"), 1)
    assert shelf.rows() == {2: "b"}


def test_changes_that_keep_values_need_an_order(session: Any, shelf: Shelf) -> None:
    """A row that is sent twice is one change; different ones of one number are refused, and nothing is stored."""
    options = {"except_column_list": "at", "ignore_null_updates_column_list": "status"}
    apply = changes(config(shelf), keys="id", sequence_by="at", **options)
    columns = "id long, status string, at int"
    with pytest.raises(ConfigError, match=r"different changes of the row id = 1 with the same at"):
        apply(frame(session, [(1, "a", 1), (2, "b", 1), (1, None, 1)], columns), 0)
    assert shelf.count() == 0
    apply(frame(session, [(1, "a", 1), (2, "b", 1), (1, "a", 1), (1, None, 2)], columns), 1)
    assert shelf.rows() == {1: "a", 2: "b"}


def test_new_columns_reach_the_table(spark: Any, shelf: Shelf) -> None:
    rows = [(1, "a", "insert", 1, 5), (2, "b", "insert", 1, None)]
    changes(config(shelf, evolve="add_columns"), **DELTA)(frame(spark, rows, f"{SCHEMA}, points int"), 0)
    found = shelf.client.rows(f"SELECT id, points FROM {shelf.database}.orders FINAL ORDER BY id")
    assert [r["points"] for r in found] == [5, None]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "key": ({"keys": "idd"}, "keys: the DataFrame has no column idd; did you mean id?"),
    "sequence": ({"sequence_by": "status"}, "sequence_by: column status is string, which is neither"),
    "words": ({"op": "status"}, "op: column status of 80 rows is none of insert"),
    "images": (
        {"ignore_null_updates_column_list": "status"},
        "of 10 rows is none of insert, update_postimage, update_after, delete",
    ),
    "both": ({"apply_as_deletes": "true"}, "op and apply_as_deletes exclude each other"),
    "left out": ({"except_column_list": "id"}, "except_column_list has id, which is one of the keys"),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_arguments_are_refused(case: str, spark: Any, shelf: Shelf) -> None:
    more, said = BAD[case]
    with pytest.raises(ConfigError) as found:
        changes(config(shelf), **DELTA | more)(frame(spark, FEED), 0)
    assert said in str(found.value)
    assert shelf.count() == 0


def written(frame: Any, shelf: Shelf, **more: str) -> Any:
    """A writer of the format with the options of Delta's feed."""
    place = {"clickhouse.url": shelf.url, "clickhouse.database": shelf.database, "clickhouse.table": "orders"}
    return frame.format("ch_sink").options(**place, **DELTA, **more)


@needs_data_sources
def test_the_format_writes_batches_and_streams_once(session: Any, shelf: Shelf) -> None:
    from ch_sink.spark.data_source import DefaultSource

    session.dataSource.register(DefaultSource)
    rows = frame(session, FEED)
    written(rows.repartition(3).write.mode("append"), shelf).save()
    assert shelf.rows() == TRUTH
    stored, recorded = shelf.count(), rows_of(session, shelf)
    assert recorded > 0
    rows.write.parquet(str(shelf.folder / "feed"))
    stream = session.readStream.schema(rows.schema).parquet(str(shelf.folder / "feed")).writeStream
    stream = written(stream, shelf).option("checkpointLocation", str(shelf.folder / "checkpoint"))
    stream.trigger(availableNow=True).start().awaitTermination()
    assert (shelf.count(), rows_of(session, shelf)) == (stored, recorded)


@needs_data_sources
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"evolve": "add_columns"}, "cannot add columns to the table"),
        ({"ignore_null_updates_column_list": "status"}, "has no option ignore_null_updates_column_list"),
        ({"clickhouse.tabel": "x"}, "clickhouse.tabel is not a known key; did you mean clickhouse.table?"),
        ({"keys": "nr"}, "the DataFrame has no column nr"),
    ],
)
def test_what_the_format_cannot_do_is_refused(more: dict[str, str], said: str, spark: Any, shelf: Shelf) -> None:
    from ch_sink.spark.data_source import DefaultSource

    spark.dataSource.register(DefaultSource)
    with pytest.raises(Exception, match=re.escape(said)):
        written(frame(spark, FEED).write.mode("append"), shelf).options(**more).save()
    assert shelf.count() == 0
