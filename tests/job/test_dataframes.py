"""`sink` on a real Spark: batches of DataFrames, by hand and by streaming queries, on classic Spark and on Connect."""

import re
import threading
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from ch_sink.clickhouse import ClickHouseLedger
from ch_sink.config import load_rows
from ch_sink.discovery.wiring import ledger_of, states_of
from ch_sink.errors import ChSinkError, ConfigError, DataLoss, LedgerConflict
from ch_sink.order import State
from ch_sink.ports import FinishedRange, TableRefilled
from ch_sink.ports.ledger import Request
from ch_sink.spark import frame_tasks, history, sink
from tests.support.choose import some
from tests.support.frames import TOPIC, Shelf, change, needs_data_sources
from tests.support.sink import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.slow]


def query(session: Any, shelf: Shelf, name: str, function: Any, *, files: int = 1, available: bool = True) -> Any:
    """A streaming query over the shelf's files, with a checkpoint of this name."""
    rows = session.readStream.schema(session.read.parquet(str(shelf.folder / "rows")).schema)
    writer = (
        rows.option("maxFilesPerTrigger", files)
        .parquet(str(shelf.folder / "rows"))
        .writeStream.foreachBatch(function)
        .option("checkpointLocation", str(shelf.folder / name))
    )
    return (
        writer.trigger(availableNow=True) if available else writer.trigger(processingTime="200 milliseconds")
    ).start()


def test_batches_are_applied_once_however_often_they_come(session: Any, shelf: Shelf) -> None:
    function = sink(shelf.config(truncate="apply"))
    path = shelf.write({0: [change(n, n) for n in range(1, 40)], 2: [change(n, n) for n in range(100, 130)]})
    frame = session.read.parquet(str(path))
    function(frame, 0)
    assert shelf.count() == len(shelf.rows()) == 69
    function(frame, 0)
    function(frame.union(frame).repartition(5), 1)  # rows that are there twice, in no order
    assert shelf.count() == 69
    more = shelf.write({0: [change(7, 500, "paid", "u"), change(8, 501, op="d")]}, {0: 39})
    function(session.read.parquet(str(path), str(more)), 2)
    assert shelf.count() == 71
    assert shelf.rows()[7] == "paid"
    assert 8 not in shelf.rows()


def test_a_paused_stream_waits_and_a_filling_counts_as_applied(session: Any, shelf: Shelf) -> None:
    config = load_rows(shelf.config())
    states = states_of(config, shelf.client.settings)
    function = sink(shelf.config())
    first = shelf.write({0: [change(n, n) for n in range(1, 5)]})
    function(session.read.parquet(str(first)), 0)
    states.ask({config.stream_name: Request("pause", "me", time.time())})
    counted = []

    def resume() -> None:
        time.sleep(2.5)
        counted.append(shelf.count())
        ledger = ledger_of(config, shelf.client)
        ledger.claim("filling")
        ledger.record(TableRefilled(TOPIC, 0, 8))
        ledger.results([FinishedRange(TOPIC, TOPIC, 0, 8, 8, state=State().to_json())])
        ledger.release()
        states.ask({config.stream_name: Request("resume", "me", time.time())})

    thread = threading.Thread(target=resume)
    thread.start()
    more = shelf.write({0: [change(n, n) for n in range(5, 11)]}, {0: 4})
    function(session.read.parquet(str(more)), 1)
    thread.join()
    assert counted == [4]
    assert sorted(shelf.rows()) == [1, 2, 3, 4, 9, 10]  # 5 to 8 are those of the filling, which this table lacks


def parts(shelf: Shelf) -> int:
    """How many inserts made the rows of the table, whose parts are not merged."""
    [found] = shelf.client.rows(f"SELECT uniqExact(_part) AS n FROM {shelf.database}.orders")
    return int(found["n"])


@pytest.mark.long
def test_small_ranges_of_a_hundred_partitions_are_one_insert(session: Any, shelf: Shelf) -> None:
    function = sink(shelf.config())
    path = shelf.write({p: [change(100 * p + n, n) for n in range(3)] for p in range(100)})
    frame = session.read.parquet(str(path))
    function(frame, 0)
    assert (shelf.count(), len(shelf.rows()), parts(shelf)) == (300, 300, 1)
    function(frame.union(frame), 1)
    assert (shelf.count(), parts(shelf)) == (300, 1)
    large = {0: [change(10_000 + n, 10 + n) for n in range(2_500)]}
    more = shelf.write(
        large | {p: [change(100 * p, 20, "paid", "u")] for p in range(1, 100)}, dict.fromkeys(range(100), 3)
    )
    function(session.read.parquet(str(more)), 2)
    assert (shelf.count(), parts(shelf)) == (300 + 2_500 + 99, 3), "the large range has an insert of its own"
    assert shelf.rows()[9_900] == "paid"


@pytest.mark.long
def test_small_ranges_of_large_rows_stay_with_the_executors(
    spark: Any, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_tasks, "BYTES", 5_000)
    long = "x" * 10_000
    path = shelf.write({p: [change(p, 1, long if p == 1 else "new")] for p in range(4)})
    sink(shelf.config())(spark.read.parquet(str(path)), 0)
    assert (shelf.count(), parts(shelf)) == (4, 2)
    assert shelf.rows() == {0: "new", 1: long, 2: "new", 3: "new"}


ENDS = (6,), (2, 5), (9,)
ENGINES = {
    "replacing": "(id Int64, status Nullable(String), _version UInt128, _is_deleted UInt8) "
    "ENGINE = ReplacingMergeTree(_version, _is_deleted)",
    "collapsing": "(id Int64, status Nullable(String), _version UInt128, _sign Int8) "
    "ENGINE = CollapsingMergeTree(_sign)",
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("engine", "ends"),
    some(product(ENGINES, ENDS), [("collapsing", (2, 5))]),
)
def test_what_was_stored_together_is_stored_once_however_it_comes_again(
    engine: str, ends: tuple[int, ...], spark: Any, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends before the ledger knows; its checkpoint may be lost, and the next batches end elsewhere."""
    shelf.client.command(f"DROP TABLE {shelf.database}.orders SYNC")
    shelf.client.command(f"CREATE TABLE {shelf.database}.orders {ENGINES[engine]} ORDER BY id")
    shelf.client.command(f"SYSTEM STOP MERGES {shelf.database}.orders")
    frame = spark.read.parquet(str(shelf.write({p: [change(10 * p + n, n) for n in range(9)] for p in range(8)})))
    record = ClickHouseLedger.results

    def dies(ledger: ClickHouseLedger, results: Sequence[FinishedRange]) -> None:
        if any(one.start < one.end for one in results):
            raise KeyboardInterrupt
        record(ledger, results)

    with monkeypatch.context() as patch:
        patch.setattr(ClickHouseLedger, "results", dies)
        with pytest.raises(KeyboardInterrupt):
            sink(shelf.config())(frame.where("offset < 6"), 0)
    assert (shelf.count(), parts(shelf)) == (48, 1)
    for end in (*ends, 9):
        sink(shelf.config())(frame.where(f"offset < {end}"), 1)
        assert shelf.count() == 8 * max(end, 6)
    [found] = shelf.client.rows(f"SELECT uniqExact(id) AS ids FROM {shelf.database}.orders")
    assert found["ids"] == 72


def test_truncates_and_new_columns_have_their_rounds(session: Any, shelf: Shelf) -> None:
    function = sink(shelf.config(truncate="apply", evolve="add_columns"))
    events = [
        change(1, 1),
        change(2, 2),
        change(0, 3, op="t"),
        change(3, 4),
        change(4, 5, note="a"),
        change(5, 6, note="b"),
    ]
    function(session.read.parquet(str(shelf.write({0: events}))), 0)
    assert shelf.rows() == {3: "new", 4: "new", 5: "new"}
    notes = shelf.client.rows(f"SELECT id, note FROM {shelf.database}.orders FINAL ORDER BY id")
    assert [r["note"] for r in notes] == [None, "a", "b"]


@pytest.mark.long
def test_a_query_goes_on_without_its_checkpoint_and_with_other_splits(session: Any, shelf: Shelf) -> None:
    for n in range(6):
        shelf.write(
            {p: [change(100 * p + 10 * n + i, 10 * n + i) for i in range(10)] for p in (0, 1)}, {0: 10 * n, 1: 10 * n}
        )
    query(session, shelf, "first", sink(shelf.config()), files=2).awaitTermination()
    assert shelf.count() == 120
    query(session, shelf, "second", sink(shelf.config()), files=3).awaitTermination()
    assert shelf.count() == len(shelf.rows()) == 120


@pytest.mark.long
def test_two_queries_on_one_stream_are_refused(session: Any, shelf: Shelf) -> None:
    shelf.write({0: [change(n, n) for n in range(10)]})
    first = query(session, shelf, "first", sink(shelf.config()), available=False)
    try:
        first.processAllAvailable()
        second = query(session, shelf, "second", sink(shelf.config()))
        with pytest.raises(Exception, match=r"is written by another query|is owned by process"):
            second.awaitTermination()
        assert first.isActive
    finally:
        first.stop()
    query(session, shelf, "second", sink(shelf.config())).awaitTermination()
    assert shelf.count() == 10


@pytest.mark.long
def test_a_gap_above_the_ledger_is_data_loss(session: Any, shelf: Shelf) -> None:
    function = sink(shelf.config())
    begun = session.read.parquet(str(shelf.write({0: [change(1, 1)]})))
    function(begun, 0)
    far = session.read.parquet(str(shelf.write({0: [change(2, 2)]}, {0: 5})))
    for lacking in (far, begun.unionByName(far)):
        with pytest.raises(DataLoss, match="offset 1 is the next to be applied, but the DataFrame begins at 5"):
            function(lacking, 1)
    near = session.read.parquet(str(shelf.write({0: [change(2, 2)]}, {0: 3})))
    with pytest.raises(DataLoss, match="lacks 1 of the offsets 1 to 3"):  # what is there twice is one record
        function(
            session.read.parquet(str(shelf.write({0: [change(2, 2)]}, {0: 1}))).unionByName(near).unionByName(near), 1
        )
    assert shelf.count() == 1
    sink(shelf.config(on_data_loss="continue"))(far, 1)
    assert shelf.count() == 2


BAD = {
    "no column value": ("value", "", "no column value"),
    "no column offset": ("offset", "", "no column offset, so it is unknown"),
    "timestamp is string": ("timestamp", "string(timestamp)", "column timestamp is string, not"),
    "key is string": ("key", "string(key)", "column key is string, not binary"),
    "offset is null": ("offset", "nullif(offset, 0)", "partition or offset is null"),
    "two topics": ("topic", f"if(offset = 1, 'other', '{TOPIC}')", "rows of topic other"),
    "headers are strings": ("headers", "'x'", "column headers is string"),
}
"""A column, what it holds instead (nothing: it is left out), and the error."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", BAD)
def test_other_columns_are_refused_by_name(case: str, spark: Any, shelf: Shelf) -> None:
    column, instead, said = BAD[case]
    frame = spark.read.parquet(str(shelf.write({0: [change(1, 1), change(2, 2)]})))
    given = frame.drop(column).columns + ([f"{instead} AS {column}"] if instead else [])
    with pytest.raises(ConfigError, match=said) as found:
        sink(shelf.config())(frame.selectExpr(*given), 0)
    assert found.value.hint in found.value.__notes__
    assert shelf.count() == 0


@pytest.mark.long
def test_a_table_of_another_stream_is_refused(spark: Any, shelf: Shelf) -> None:
    frame = spark.read.parquet(str(shelf.write({0: [change(1, 1)]})))
    other = shelf.config()
    other["kafka"] = {"topic": "shop.public.other"}
    sink(shelf.config())(frame, 0)
    with pytest.raises(ConfigError, match=r"belongs to another stream, 'shop\.public\.orders:"):
        sink(other)(frame.drop("topic").selectExpr("*", "'shop.public.other' AS topic"), 0)
    assert shelf.count() == 1


@pytest.mark.long
def test_a_stream_that_a_job_has_is_refused(spark: Any, shelf: Shelf) -> None:
    from ch_sink.config import load_rows
    from ch_sink.discovery.wiring import client_of, ledger_of
    from ch_sink.ports import FinishedRange, RangeIntent

    frame = spark.read.parquet(str(shelf.write({0: [change(1, 1), change(2, 2)]})))
    sink(shelf.config())(frame.where("offset = 0"), 0)
    config = load_rows(shelf.config())
    job = ledger_of(config, client_of(config))
    job.claim("a-job")
    try:
        with pytest.raises(LedgerConflict, match="is owned by process"):
            sink(shelf.config())(frame, 1)
        span = (TOPIC, "an id of Kafka", 0, 0, 1)
        job.intents([RangeIntent(*span)])
        job.results([FinishedRange(*span)])
    finally:
        job.release()
    with pytest.raises(ConfigError, match="belongs to a job or query that reads something else"):
        sink(shelf.config())(frame, 1)
    assert shelf.count() == 1


def test_unknown_options_have_the_nearest_name(shelf: Shelf, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean truncate"):
        sink(shelf.config(truncat="apply"))
    path = tmp_path / "orders.yaml"
    path.write_text(f"kafka: {{topic: {TOPIC}}}\nclickhouse: {{url: '{shelf.url}', tabel: orders}}\n")
    with pytest.raises(ChSinkError, match=r"clickhouse.tabel is not a known key; did you mean clickhouse.table"):
        sink(path)


@pytest.mark.long
def test_the_history_is_a_dataframe(session: Any, shelf: Shelf) -> None:
    config = shelf.config()
    path = shelf.write({0: [change(1, 1), change(2, 2)], 1: [change(3, 3), change(3, 4, op="d")]})
    sink(config)(session.read.parquet(str(path)), 0)
    found = history(session, config).orderBy("partition").collect()
    assert [(r.partition, r.first_offset, r.end_offset, r.rows, r.deletes) for r in found] == [
        (0, 0, 2, 2, 0),
        (1, 0, 2, found[1].rows, 1),
    ]
    assert found[0].source_time is not None
    assert history(session, config).where("finished >= started").count() == 2


PAGE = (ROOT / "docs" / "dataframes.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
[DDL] = re.findall(r"```sql\n(CREATE TABLE .*?);\n```", PAGE, re.DOTALL)


def example(name: str) -> str:
    return next(block for block in BLOCKS if name in block)


@pytest.mark.long
@needs_data_sources
def test_the_page(session: Any, shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    spark = session
    monkeypatch.chdir(shelf.folder)
    bronze = str(shelf.write({0: [change(1, 1), change(2, 2), change(1, 3, "paid", "u")]}).parent)
    feed = str(shelf.folder / "feed.parquet")
    given = {"url": shelf.url, "database": shelf.database}
    exec(example("spark.read.parquet(bronze)"), {"spark": spark, "bronze": bronze, **given})
    assert shelf.rows() == {1: "paid", 2: "new"}
    (shelf.folder / "orders.yaml").write_text(yaml.safe_dump(shelf.config()))
    exec(example("history("), {"spark": spark})
    rows = [
        {"id": 1, "status": "new", "_change_type": "insert", "_commit_version": 1},
        {"id": 1, "status": "new", "_change_type": "update_preimage", "_commit_version": 2},
        {"id": 7, "status": "paid", "_change_type": "update_postimage", "_commit_version": 2},
    ]
    pq.write_table(pa.Table.from_pylist(rows), feed)
    shelf.client.command(f"TRUNCATE TABLE {shelf.database}.ch_sink_ledger")
    shelf.client.command(f"DROP TABLE {shelf.database}.orders SYNC")
    shelf.client.command(DDL.replace("shop.", f"{shelf.database}."))
    exec(example("changes("), {"spark": spark, "feed": feed, **given})
    assert shelf.rows() == {7: "paid"}
    stored = shelf.count()
    exec(example("register"), {"spark": spark, "feed": feed, **given})
    assert shelf.count() == stored
