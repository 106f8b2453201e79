"""The job's figures for Prometheus, at ``/metrics``: names and units as its guidelines ask, prefix ``ch_sink_``."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Histogram, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from ch_sink import __version__
from ch_sink.observe.job_view import Live
from ch_sink.observe.stream import StreamSummary, StreamView
from ch_sink.serve.listener import Address, Answer, Listener, Request

STATES = ("opening", "running", "idle", "waiting", "stopped", "paused", "done")
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """A registry of the job's own, which a `Live` fills."""

    def __init__(self, live: Live, server_version: Callable[[], str] = lambda: "") -> None:
        """``server_version``: ClickHouse's version, empty while it is not known."""
        self.registry = CollectorRegistry()
        self.registry.register(_Streams(live, server_version))
        ProcessCollector(namespace="ch_sink", registry=self.registry)
        self._batches = Histogram(
            "ch_sink_batch_seconds",
            "Duration of a batch of a stream",
            ["stream"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._stages = Histogram(
            "ch_sink_stage_seconds",
            "Time that a batch of a stream spent in a stage, summed over its tasks; stages overlap",
            ["stream", "stage"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        live.listen(self._batch)

    def _batch(self, seen: StreamSummary) -> None:
        self._batches.labels(seen.stream).observe(seen.batch_seconds)
        for stage, seconds in seen.batch.stages.items():
            self._stages.labels(seen.stream, stage).observe(seconds)


class MetricsServer(Listener):
    """Answers at ``/metrics`` until it is closed. Any name of the host will do: figures hold nothing of records."""

    def __init__(self, address: Address, registry: CollectorRegistry) -> None:
        """Port 0 takes a free one. Raises ConfigError if the address cannot be taken."""

        def answer(request: Request) -> Answer:
            encoder, content_type = choose_encoder(request.headers.get("accept", ""))
            return Answer(200, encoder(registry), content_type)

        super().__init__(address, answer, "metrics:")


@contextmanager
def serving(address: str, live: Live) -> Iterator[None]:
    """Serve a job's metrics. Raises ConfigError if the address cannot be taken."""
    server = MetricsServer(Address.parse(address, "metrics"), Metrics(live, lambda: live.server_version).registry)
    try:
        yield
    finally:
        server.close()


class _Streams(Collector):
    """Reads the figures when Prometheus asks."""

    def __init__(self, live: Live, server_version: Callable[[], str]) -> None:
        self._live, self._server_version = live, server_version

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        streams = self._live.snapshot()
        info = InfoMetricFamily("ch_sink", "Versions of the sink and of the server")
        info.add_metric([], {"version": __version__, "clickhouse_version": self._server_version()})
        yield info
        yield _states(streams)
        yield from _gauges(streams, time.time())
        for name, text, value in _COUNTERS:
            found = CounterMetricFamily(f"ch_sink_{name}", text, labels=("stream", "table"))
            for stream in streams:
                found.add_metric((stream.stream, stream.summary.table), value(stream.summary))
            yield found
        skipped = CounterMetricFamily("ch_sink_skipped_records", _SKIPPED, labels=("stream", "kind"))
        for stream in streams:
            for kind, number in stream.summary.counts.skipped.items():
                skipped.add_metric((stream.stream, kind), number)
        yield skipped


_SKIPPED = "Records that change no row, by kind"
_COUNTERS: Sequence[tuple[str, str, Callable[[StreamSummary], float]]] = (
    ("batches", "Batches that have ended", lambda s: s.batches),
    ("records", "Records read", lambda s: s.counts.records),
    ("rows", "Rows inserted into the table", lambda s: s.counts.rows),
    ("deletes", "Deletes stored", lambda s: s.counts.deletes),
    ("dead_letters", "Records that could not be applied", lambda s: s.counts.dead_letters),
    (
        "deduplicated_changes",
        "Changes that were applied before or are older than the row",
        lambda s: s.counts.deduplicated,
    ),
    ("backward_steps", "Times that a source's position stepped back", lambda s: s.counts.kinds["backward_steps"]),
    ("retries", "Failures after which the stream tried again", lambda s: s.retries),
)


def _states(streams: Sequence[StreamView]) -> Metric:
    found = GaugeMetricFamily(
        "ch_sink_stream_state", "1 for the state of the stream, else 0", labels=("stream", "state")
    )
    for stream in streams:
        for state in dict.fromkeys((*STATES, stream.standing.state)):
            found.add_metric((stream.stream, state), float(stream.standing.state == state))
    return found


def _gauges(streams: Sequence[StreamView], now: float) -> Iterator[Metric]:
    lag = GaugeMetricFamily("ch_sink_lag_records", "Offsets still to read", labels=("stream",))
    behind = GaugeMetricFamily(
        "ch_sink_lag_seconds", "Age of the newest change applied, 0 if all are", labels=("stream",)
    )
    newest = GaugeMetricFamily(
        "ch_sink_newest_change_timestamp_seconds", "Source time of the newest change applied", labels=("stream",)
    )
    waiting = GaugeMetricFamily(
        "ch_sink_waiting_changes", "Changes that wait for the other half of a key change", labels=("stream",)
    )
    upto = GaugeMetricFamily(
        "ch_sink_equal_up_to_timestamp_seconds",
        "Begin of the newest comparison that found the table equal to its source",
        labels=("stream",),
    )
    differing = GaugeMetricFamily(
        "ch_sink_differing_rows", "Rows that the newest comparison found to differ", labels=("stream",)
    )
    offset = GaugeMetricFamily("ch_sink_next_offset", "Offset that is read next", labels=("stream", "partition"))
    for stream in streams:
        seen = stream.summary
        for partition, number in dict(seen.offsets).items():
            offset.add_metric((stream.stream, str(partition)), number)
        if seen.lag is not None:
            lag.add_metric((stream.stream,), seen.lag)
        seconds = stream.behind(now)
        if seconds is not None:
            behind.add_metric((stream.stream,), seconds)
        if seen.counts.source_time:
            newest.add_metric((stream.stream,), seen.counts.source_time / 1000)
        waiting.add_metric((stream.stream,), seen.waiting)
        if stream.compared is not None:
            upto.add_metric((stream.stream,), stream.compared.equal_up_to)
            differing.add_metric((stream.stream,), stream.compared.differences)
    yield from (lag, behind, newest, waiting, offset, upto, differing)
