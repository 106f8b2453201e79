"""The figures of a running job, with an hour of history."""

from ch_sink.observe.live import BatchSeen, Live, LiveStream
from ch_sink.observe.progress import StreamSummary


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def summary(records: int, *, lag: int = 0, **counts: int) -> StreamSummary:
    found = StreamSummary("shop.orders", "orders", "shop.orders", lag=lag)
    found.figures.batches = 1
    found.figures.add(records=records, rows=records // 2, counts=counts, source_time=999_990_000)
    return found


def test_a_stream_is_known_from_its_state_before_its_first_batch() -> None:
    live = Live(Clock())
    live.follow(lambda: [LiveStream("shop.orders", "orders", "", "stopped", "column `x` is missing", "add it")])
    [stream] = live.snapshot()
    assert (stream.stream, stream.state, stream.error, stream.next) == (
        "shop.orders",
        "stopped",
        "column `x` is missing",
        "add it",
    )
    assert stream.lag is None
    assert stream.behind(1_000_000.0) is None


def test_table_and_lag_are_known_before_the_first_batch() -> None:
    live, job = Live(Clock()), [LiveStream("shop.orders", "orders", "shop.orders", lag=7)]
    live.follow(lambda: job)
    [stream] = live.snapshot()
    assert (stream.table, stream.lag, stream.batches) == ("shop.orders", 7, 0)
    live.batch(summary(100, lag=3))
    job[:] = [LiveStream("shop.orders", "orders")]
    [stream] = live.snapshot()
    assert (stream.table, stream.lag, stream.records) == ("shop.orders", 3, 100)


def test_a_batch_adds_to_the_sums_and_tells_listeners_only_what_is_new() -> None:
    live, seen = Live(Clock()), list[BatchSeen]()
    live.listen(seen.append)
    first = summary(100, decode_ms=1500)
    first.batch_seconds = 2.0
    live.batch(first)
    live.batch(summary(250, decode_ms=2500, insert_ms=500, backward_steps=1, tombstone=3))
    [stream] = live.snapshot()
    assert (stream.records, stream.rows, stream.backward_steps, stream.skipped) == (250, 125, 1, {"tombstone": 3})
    assert stream.stages == {"decode": 2.5, "insert": 0.5}
    assert [(one.records, one.seconds, dict(one.stages)) for one in seen] == [
        (100, 2.0, {"decode": 1.5}),
        (150, 0.0, {"decode": 1.0, "insert": 0.5}),
    ]


def test_history_has_a_point_for_each_ten_seconds_idle_ones_included() -> None:
    clock = Clock()
    live = Live(clock)
    live.batch(summary(100, lag=7))
    clock.now += 4
    live.batch(summary(150, lag=5))
    assert live.snapshot()[0].history == ()
    clock.now += 31
    points = live.snapshot()[0].history
    assert [(p.at - 1_000_000, p.records, p.lag) for p in points] == [(0, 150, 5), (10, 0, 5), (20, 0, 5)]
    assert live.snapshot()[0].rate == 0.0


def test_history_keeps_one_hour() -> None:
    clock = Clock()
    live = Live(clock)
    live.batch(summary(100))
    clock.now += 86_400
    points = live.snapshot()[0].history
    assert len(points) == 360
    assert points[-1].at == clock.now // 10 * 10 - 10
    assert sum(p.records for p in points) == 0


def test_age_of_the_newest_change_counts_only_while_there_is_lag() -> None:
    live = Live(Clock())
    live.batch(summary(1, lag=0))
    assert live.snapshot()[0].behind(1_000_000.0) == 0.0
    live.batch(summary(2, lag=3))
    assert live.snapshot()[0].behind(1_000_000.0) == 10.0


def test_a_stream_that_left_is_gone() -> None:
    live = Live(Clock())
    job = [LiveStream("a", "a"), LiveStream("b", "b")]
    live.follow(lambda: job)
    assert [s.stream for s in live.snapshot()] == ["a", "b"]
    del job[0]
    assert [s.stream for s in live.snapshot()] == ["b"]
