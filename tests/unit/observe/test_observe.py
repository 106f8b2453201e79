"""Progress and status: sums and what is derived from them."""

from ch_sink.model.counts import Counts
from ch_sink.observe.stream import StreamStatus, StreamSummary, earlier_topics, partitions_of, progress_line
from ch_sink.ports import PartitionTotals
from tests.support.views import counts_of


def totals(partition: int, next_offset: int, topic_id: str = "now", state: str = "", **counts: int) -> PartitionTotals:
    return PartitionTotals("t", topic_id, partition, next_offset, counts_of(**counts), state, 0.0)


def status(
    totals: list[PartitionTotals],
    *,
    watermarks: dict[int, tuple[int, int]] | None,
    progress: dict[int, int],
    now: float = 0.0,
) -> StreamStatus:
    """The status of a stream whose topic has the id ``now``."""
    partitions = partitions_of(totals, "now", watermarks, progress)
    return StreamStatus("s", "t", "now", "db.t", partitions, reachable=watermarks is not None, time=now)


def test_figures_add_up_over_ranges():
    counts = Counts()
    counts.add(counts_of(10, 4, 0, 50, deletes=1, tombstone=2, heartbeat=1))
    counts.add(counts_of(30, 6, 1, 40, deletes=2, redelivered=5))
    assert (counts.records, counts.rows, counts.deletes, counts.dead_letters) == (40, 10, 3, 1)
    assert (counts.skipped, counts.deduplicated) == ({"tombstone": 2, "heartbeat": 1}, 5)
    assert counts.source_time == 50
    assert StreamSummary("s", "t", counts=counts, seconds=2.0).rate == 20.0


def test_the_progress_line_leaves_out_what_did_not_happen():
    summary = StreamSummary("s", "t", "shop.orders", counts_of(1_200_000, 9), batches=3, seconds=4.0, lag=70)
    line = progress_line(summary)
    assert line == "shop.orders  batch 3  1 200 000 records  300 000/s  9 rows  lag 70"
    summary.counts.add(counts_of(dead_letters=1, deletes=2))
    assert "2 deletes  1 dead letter  " in progress_line(summary)


def test_lag_counts_from_the_ledger_or_the_first_offset_there():
    seen = status([totals(0, 40)], watermarks={0: (0, 100), 1: (5, 25)}, progress={0: 40})
    assert [(p.partition, p.next_offset, p.lag) for p in seen.partitions] == [(0, 40, 60), (1, None, 20)]
    assert seen.lag == 80


def test_lag_is_unknown_without_the_broker():
    seen = status([totals(0, 40)], watermarks=None, progress={0: 40})
    assert seen.lag is None
    assert seen.as_json()["partitions"][0]["lag"] is None


def test_offsets_that_are_gone_are_counted():
    seen = status([], watermarks={0: (90, 100)}, progress={0: 40})
    assert seen.partitions[0].lost == 50


def test_an_earlier_topic_of_the_same_name_is_not_mixed_in():
    both = [totals(0, 9, "old", rows=9), totals(0, 3, rows=3)]
    assert earlier_topics(both, "now") == ("old",)
    assert status(both, watermarks={0: (0, 3)}, progress={0: 3}).as_json()["rows"] == 3


def test_epochs_come_from_the_recorded_state():
    state = '{"sources":{"pg":{"epoch":2,"commit":7}}}'
    seen = status([totals(0, 3, state=state)], watermarks=None, progress={})
    assert seen.partitions[0].epochs == {"pg": 2}
    assert seen.partitions[0].next_offset == 3


def test_lag_in_seconds_counts_from_the_newest_event_that_is_applied():
    seen = status(
        [totals(0, 40, source_time=1_000_000), totals(1, 25, source_time=900_000)],
        watermarks={0: (0, 100), 1: (5, 25)},
        progress={0: 40, 1: 25},
        now=1007.5,
    )
    assert [p.behind(1007.5) for p in seen.partitions] == [7.5, 0.0]
    assert seen.as_json()["behind_seconds"] == 7.5


def test_lag_in_seconds_is_unknown_before_the_first_event():
    seen = status([], watermarks={0: (0, 9)}, progress={})
    assert seen.as_json()["behind_seconds"] is None


def test_stages_are_summed_over_partitions():
    given = [totals(p, 1, insert_ms=1500, decode_ms=20, events=3) for p in (0, 1)]
    seen = status(given, watermarks=None, progress={})
    assert seen.as_json()["seconds"] == {"decode": 0.04, "insert": 3.0}
