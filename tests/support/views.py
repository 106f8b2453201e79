"""Streams of a running job with made-up figures."""

from collections import Counter

from ch_sink.model.counts import Counts
from ch_sink.observe.stream import Standing, StreamSummary, StreamView
from ch_sink.ports import Compared


def counts_of(records: int = 0, rows: int = 0, dead_letters: int = 0, source_time: int = 0, **kinds: int) -> Counts:
    return Counts(records, rows, dead_letters, source_time, kinds=Counter(kinds))


def view(
    stream: str,
    table: str = "",
    standing: Standing = Standing("running"),  # noqa: B008 (frozen)
    *,
    lag: int | None = None,
    compared: Compared | None = None,
    **counts: int,
) -> StreamView:
    """``counts``: see `counts_of`."""
    return StreamView(StreamSummary(stream, stream, table, counts_of(**counts), lag=lag), standing, compared)
