"""The figures of a running job, with an hour of history."""

from ch_sink.model.counts import Counts
from ch_sink.observe.job_view import Album, JobView, Live
from ch_sink.observe.stream import Standing, StreamView
from tests.support.views import counts_of, view


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def job(*streams: StreamView) -> tuple[Live, Clock]:
    """What follows a job of these streams, and its clock."""
    clock = Clock()
    live = Live(clock)
    live.follow(lambda: streams)
    return live, clock


def batch(live: Live, stream: StreamView, lag: int = 0, **counts: int) -> None:
    """A batch with these figures has ended."""
    stream.summary.batch, stream.summary.lag = counts_of(**counts, source_time=999_990_000), lag
    stream.summary.counts.add(stream.summary.batch)
    live.batch(stream.summary)


def test_a_stream_is_known_from_its_standing_before_its_first_batch() -> None:
    stopped = Standing("stopped", 0.0, "column `x` is missing", "add it")
    live, _ = job(view("shop.orders", "shop.orders", stopped, lag=None))
    [stream] = live.snapshot()
    assert (stream.stream, stream.standing, stream.summary.lag) == ("shop.orders", stopped, None)
    assert stream.behind(1_000_000.0) is None


def test_listeners_are_given_each_batch() -> None:
    orders, seen = view("shop.orders"), list[Counts]()
    live, _ = job(orders)
    live.listen(lambda summary: seen.append(summary.batch))
    batch(live, orders, records=100, rows=50, decode_ms=1500)
    batch(live, orders, records=150, rows=75, decode_ms=1000, insert_ms=500, tombstone=3)
    [stream] = live.snapshot()
    counts = stream.summary.counts
    assert (counts.records, counts.rows, counts.skipped) == (250, 125, {"tombstone": 3})
    assert counts.stages == {"decode": 2.5, "insert": 0.5}
    assert [(one.records, one.stages) for one in seen] == [
        (100, {"decode": 1.5}),
        (150, {"decode": 1.0, "insert": 0.5}),
    ]


def test_history_has_a_point_for_each_ten_seconds_idle_ones_included() -> None:
    orders = view("shop.orders")
    live, clock = job(orders)
    batch(live, orders, 7, records=100)
    clock.now += 4
    batch(live, orders, 5, records=50)
    assert live.snapshot()[0].history == ()
    clock.now += 31
    [stream] = live.snapshot()
    assert [(p.at - 1_000_000, p.records, p.lag) for p in stream.history] == [(0, 150, 5), (10, 0, 5), (20, 0, 5)]
    assert stream.rate == 0.0


def test_history_keeps_one_hour() -> None:
    orders = view("shop.orders")
    live, clock = job(orders)
    batch(live, orders, records=100)
    clock.now += 86_400
    points = live.snapshot()[0].history
    assert len(points) == 360
    assert points[-1].at == clock.now // 10 * 10 - 10
    assert sum(p.records for p in points) == 0


def test_age_of_the_newest_change_counts_only_while_there_is_lag() -> None:
    orders = view("shop.orders")
    live, _ = job(orders)
    batch(live, orders, 0, records=1)
    assert live.snapshot()[0].behind(1_000_000.0) == 0.0
    batch(live, orders, 3, records=1)
    assert live.snapshot()[0].behind(1_000_000.0) == 10.0


def test_a_stream_that_left_is_gone() -> None:
    streams, live = [view("b"), view("a")], Live(Clock())
    live.follow(lambda: streams)
    assert [s.stream for s in live.snapshot()] == ["a", "b"]
    del streams[1]
    assert [s.stream for s in live.snapshot()] == ["b"]


def test_a_lag_that_grew_while_nobody_looked_is_a_line() -> None:
    paused = view("shop.orders", "", Standing("paused"))
    live, clock = job(paused)
    batch(live, paused, 0, records=10)
    clock.now += 41
    paused.summary.lag = 300
    assert [point.lag for point in live.snapshot()[0].history] == [0, 100, 200, 300]


def test_a_stream_that_leaves_takes_nothing_from_what_was_read() -> None:
    album, stays, leaves = Album(), view("stays"), view("leaves")
    for stream, records in ((stays, 10), (leaves, 1000)):
        stream.summary.counts.add(counts_of(records=records))
    album.add(JobView((stays, leaves), 0.0))
    stays.summary.lag = 0
    shown = album.add(JobView((stays,), 10.0))
    assert (shown.done, shown.rate) == (None, 0.0)
    stays.summary.counts.add(counts_of(records=50))
    assert album.add(JobView((stays,), 20.0)).rate == 5.0
