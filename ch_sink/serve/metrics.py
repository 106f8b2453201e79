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
from ch_sink.observe.stream import STATES, StreamSummary, StreamView
from ch_sink.serve.listener import Address, Answer, Listener, Request

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
    (
        "out_of_range_values",
        "Values stored as another one, or as null, because their column cannot hold them",
        lambda s: s.counts.out_of_range,
    ),
    ("backward_steps", "Times that a source's position stepped back", lambda s: s.counts.kinds["backward_steps"]),
    ("retries", "Failures after which the stream tried again", lambda s: s.retries),
)


_GAUGES: Sequence[tuple[str, str, Callable[[StreamView, float], float | None]]] = (
    ("lag_records", "Offsets still to read", lambda s, _: s.summary.lag),
    ("lag_seconds", "Age of the newest change applied, 0 if all are", lambda s, now: s.behind(now)),
    (
        "newest_change_timestamp_seconds",
        "Source time of the newest change applied",
        lambda s, _: s.summary.counts.source_time / 1000 or None,
    ),
    ("waiting_changes", "Changes that wait for the other half of a key change", lambda s, _: s.summary.waiting),
    (
        "equal_up_to_timestamp_seconds",
        "Begin of the newest comparison that found the table equal to its source",
        lambda s, _: s.compared.equal_up_to if s.compared is not None else None,
    ),
    (
        "differing_rows",
        "Rows, signs, groups of rollups and columns that the newest comparison found to differ",
        lambda s, _: s.compared.differences if s.compared is not None else None,
    ),
)
"""Name, text and value, None if it is not known; the value also of the moment in seconds since 1970."""


def _gauges(streams: Sequence[StreamView], now: float) -> Iterator[Metric]:
    for name, text, value in _GAUGES:
        found = GaugeMetricFamily(f"ch_sink_{name}", text, labels=("stream",))
        for stream in streams:
            if (figure := value(stream, now)) is not None:
                found.add_metric((stream.stream,), figure)
        yield found
    offset = GaugeMetricFamily("ch_sink_next_offset", "Offset that is read next", labels=("stream", "partition"))
    state = GaugeMetricFamily(
        "ch_sink_stream_state", "1 for the state of the stream, else 0", labels=("stream", "state")
    )
    for stream in streams:
        for partition, number in dict(stream.summary.offsets).items():
            offset.add_metric((stream.stream, str(partition)), number)
        for name in STATES:
            state.add_metric((stream.stream, name), float(stream.standing.state == name))
    yield from (offset, state)
