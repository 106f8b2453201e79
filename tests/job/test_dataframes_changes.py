"""`changes` and ``format("ch_sink")`` on a real Spark, classic and Connect."""

import re
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest

from ch_sink.errors import ConfigError
from ch_sink.spark import changes, history
from ch_sink.spark.executor import context_of
from tests.support.frames import Shelf, needs_data_sources

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
    [found] = shelf.client.rows(f"SELECT uniqExact(_part) AS parts FROM {shelf.database}.orders")
    assert found["parts"] == 1, "all groups of keys share an insert"
    apply(frame(session, FEED), 1)
    assert shelf.rows() == TRUTH
    stored, recorded = shelf.count(), rows_of(session, shelf)
    apply(frame(session, FEED[::-1]).repartition(5), 2)
    assert (shelf.count(), rows_of(session, shelf)) == (stored, recorded)


@pytest.mark.long
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


@pytest.mark.long
def test_changes_that_keep_values_need_an_order(session: Any, shelf: Shelf) -> None:
    """A row that is sent twice is one change; different ones of one number are refused, and nothing is stored."""
    options = {"except_column_list": "at", "ignore_null_updates_column_list": "status"}
    apply = changes(config(shelf), keys="id", sequence_by="at", **options)
    columns = "id long, status string, at int"
    with pytest.raises(ConfigError, match=r"different changes of the row id = 1 with the same at"):
        apply(frame(session, [(1, "a", 1), (2, "b", 1), (1, None, 1)], columns), 0)
    times = [(1, f"2024-01-01 00:00:00.00000{n}", 1) for n in range(2)]
    with pytest.raises(ConfigError, match=r"different changes of the row id = 1"):
        apply(frame(session, times, columns).selectExpr("id", "timestamp(status) AS status", "at"), 0)
    assert shelf.count() == 0
    apply(frame(session, [(1, "a", 1), (2, "b", 1), (1, "a", 1), (1, None, 2)], columns), 1)
    assert shelf.rows() == {1: "a", 2: "b"}


@pytest.mark.long
def test_two_keys_never_become_one(session: Any, shelf: Shelf) -> None:
    """The texts 7 and 07 would be one row."""
    apply = changes(config(shelf), keys="id", sequence_by="at", except_column_list="at")
    rows = frame(session, [("7", "a", 1), ("07", "b", 2)], "id string, status string, at int")
    with pytest.raises(ConfigError, match="keys of type string that differ can be one value of Int64"):
        apply(rows, 0)
    assert shelf.count() == 0
    apply(rows.selectExpr("bigint(id) AS id", "status", "at"), 1)
    assert shelf.rows() == {7: "b"}


@pytest.mark.long
def test_columns_have_any_name(session: Any, shelf: Shelf) -> None:
    place = f"{shelf.database}.orders"
    shelf.client.command(f"DROP TABLE {place} SYNC")
    shelf.client.command(
        f"CREATE TABLE {place} (`o.id` Int64, `we``ird` Nullable(String), _version UInt128, _is_deleted UInt8) "
        "ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY `o.id`"
    )
    apply = changes(
        config(shelf),
        keys="o.id",
        sequence_by="c.`at",
        op="o.p",
        except_column_list="c.`at",
        ignore_null_updates_column_list="we`ird",
    )
    schema = "`o.id` long, `we``ird` string, `c.``at` int, `o.p` string"
    apply(frame(session, [(1, "a", 1, "insert"), (2, "b", 1, "insert"), (1, None, 2, "update_after")], schema), 0)
    apply(frame(session, [(2, None, 3, "delete")], schema), 1)
    found = shelf.client.rows(f"SELECT `o.id`, `we``ird` FROM {place} FINAL WHERE NOT _is_deleted")
    assert [tuple(row.values()) for row in found] == [(1, "a")]


@pytest.mark.long
def test_new_columns_reach_the_table(spark: Any, shelf: Shelf) -> None:
    apply = changes(config(shelf, evolve="add_columns"), **DELTA)
    apply(frame(spark, [(3, "c", "insert", 1)], SCHEMA), 0)
    rows = [(1, "a", "insert", 2, 5), (2, "b", "insert", 2, None)]
    apply(frame(spark, rows, f"{SCHEMA}, points int"), 1)
    found = shelf.client.rows(f"SELECT id, points FROM {shelf.database}.orders FINAL ORDER BY id")
    assert [r["points"] for r in found] == [5, None, None]


@pytest.mark.long
def test_a_new_column_gets_the_type_of_the_dataframe_or_is_refused_by_name(spark: Any, shelf: Shelf) -> None:
    apply = changes(config(shelf, evolve="add_columns"), **DELTA)
    known = (1, "a", "insert", 1)
    apply(
        frame(
            spark,
            [(*known, Decimal("1.25"), datetime(2024, 5, 1, 12))],
            f"{SCHEMA}, price decimal(9,2), at timestamp_ntz",
        ),
        0,
    )
    found = shelf.client.rows(f"SELECT price, toString(at, 'UTC') AS at FROM {shelf.database}.orders FINAL")
    assert found == [{"price": Decimal("1.25"), "at": "2024-05-01 12:00:00.000000"}]
    with pytest.raises(
        ConfigError, match="lacks column tags, and evolve: add_columns adds no column of type array<int>"
    ):
        apply(frame(spark, [(2, "b", "insert", 2, [1])], f"{SCHEMA}, tags array<int>"), 1)
    assert shelf.count() == 1


@pytest.mark.long
@needs_data_sources
def test_times_without_a_zone_order_changes_in_any_session_zone_and_in_both_doors(spark: Any, shelf: Shelf) -> None:
    options = {"keys": "id", "sequence_by": "at", "except_column_list": "at"}
    schema, apply = "id long, status string, at timestamp_ntz", changes(config(shelf), **options)
    gap = [(1, "old", datetime(2024, 3, 31, 2, 30)), (1, "new", datetime(2024, 3, 31, 3, 10, 0, 5))]
    later = [(n, "new", datetime(2024, 5, 1, 13)) for n in (2, 3)]
    register(spark)
    before = spark.conf.get("spark.sql.session.timeZone")
    try:
        first = frame(spark, [(3, "old", datetime(2024, 5, 1, 12))], schema)
        written(first.write.mode("append"), shelf, options=options).save()
        apply(frame(spark, [(2, "old", datetime(2024, 5, 1, 12))], schema), 0)
        spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
        apply(frame(spark, [*gap, *later], schema), 1)
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    assert shelf.rows() == {1: "new", 2: "new", 3: "new"}


@pytest.mark.long
@needs_data_sources
def test_the_format_orders_changes_by_dates(spark: Any, shelf: Shelf) -> None:
    options = {"keys": "id", "sequence_by": "day", "except_column_list": "day"}
    rows = [(1, "new", date(2024, 1, 2)), (1, "old", date(2024, 1, 1))]
    register(spark)
    days = frame(spark, rows, "id long, status string, day date")
    written(days.write.mode("append"), shelf, options=options).save()
    assert shelf.rows() == {1: "new"}


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


def register(session: Any) -> None:
    """Let a session know the format."""
    from ch_sink.spark.data_source import DefaultSource  # Spark 3.5 has no such sources

    session.dataSource.register(DefaultSource)


def written(frame: Any, shelf: Shelf, *, options: dict[str, str] = DELTA, **more: str) -> Any:
    """A writer of the format with these options."""
    place = {"clickhouse.url": shelf.url, "clickhouse.database": shelf.database, "clickhouse.table": "orders"}
    return frame.format("ch_sink").options(**place, **options, **more)


@needs_data_sources
def test_the_format_writes_batches_and_streams_once(session: Any, shelf: Shelf) -> None:
    register(session)
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


@pytest.mark.long
@needs_data_sources
def test_the_format_keeps_the_dead_letters_of_each_write_and_micro_batch(session: Any, shelf: Shelf) -> None:
    register(session)
    shelf.client.command(f"ALTER TABLE {shelf.database}.orders MODIFY COLUMN status Nullable(UInt8)")
    numbers = iter(range(1, 9))

    def bad() -> Any:
        number = next(numbers)
        schema = "id bigint, status int, _change_type string, _commit_version bigint"
        return frame(session, [(number, 300, "insert", number)], schema).coalesce(1)

    for _ in range(2):
        written(bad().write.mode("append"), shelf).save()
    folder = str(shelf.folder / "bad")
    for _ in range(2):
        bad().write.mode("append").parquet(folder)
    stream = session.readStream.schema(bad().schema).option("maxFilesPerTrigger", 1).parquet(folder).writeStream
    stream = written(stream, shelf).option("checkpointLocation", str(shelf.folder / "checkpoint"))
    stream.trigger(availableNow=True).start().awaitTermination()

    def twice(batch: Any, _: int) -> None:
        for number in (7, 8):
            again = batch.selectExpr(f"{number}L AS id", "status", "_change_type", "_commit_version").limit(1)
            written(again.write.mode("append"), shelf).save()

    letters, classic = f"SELECT key FROM {shelf.database}.ch_sink_dead_letters FINAL", context_of(session) is not None
    if classic:  # Connect would have to pickle the function
        stream = session.readStream.schema(bad().schema).parquet(folder).writeStream.foreachBatch(twice)
        stream.trigger(availableNow=True).start().awaitTermination()
    assert len(shelf.client.rows(letters)) == 4 + 2 * classic


@pytest.mark.sampled(1)
@needs_data_sources
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"evolve": "add_columns"}, "cannot add columns to the table"),
        ({"errors.max": "0"}, "cannot count the dead letters of its tasks"),
        ({"ignore_null_updates_column_list": "status"}, "has no option ignore_null_updates_column_list"),
        ({"clickhouse.tabel": "x"}, "clickhouse.tabel is not a known key; did you mean clickhouse.table?"),
        ({"keys": "nr"}, "the DataFrame has no column nr"),
    ],
)
def test_what_the_format_cannot_do_is_refused(more: dict[str, str], said: str, spark: Any, shelf: Shelf) -> None:
    register(spark)
    with pytest.raises(Exception, match=re.escape(said)):
        written(frame(spark, FEED).write.mode("append"), shelf).options(**more).save()
    assert shelf.count() == 0
