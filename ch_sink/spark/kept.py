"""What a Python worker keeps of a stream from one task to the next: its configuration and its decoders.

Decoding is a function of records and profile; what a decoder keeps besides (parsed schemas, layouts) never changes a
value. It is used by one task at a time.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache

from ch_sink.config import Config
from ch_sink.pipeline.plan import BatchDecoder
from ch_sink.table.model import TargetTable

__all__ = ["KeptStream", "kept_stream"]

_STREAMS = 512
"""Streams of which a worker keeps something; the one that was used longest ago is forgotten."""

Make = Callable[[TargetTable, bool], BatchDecoder]


class KeptStream:
    """One stream in this worker."""

    def __init__(self, text: str) -> None:
        self.config = Config.from_task_json(text)
        self._lock = threading.Lock()
        self._idle: dict[bool, list[tuple[TargetTable, BatchDecoder]]] = {False: [], True: []}

    @contextmanager
    def decoders(self, make: Make) -> Iterator[Make]:
        """Takes decoders for a task: a kept one if it is for the same table, else what ``make`` makes."""
        taken: list[tuple[bool, TargetTable, BatchDecoder]] = []

        def take(table: TargetTable, before: bool) -> BatchDecoder:
            with self._lock:
                kept = self._idle[before].pop() if self._idle[before] else None
            decoder = kept[1] if kept is not None and kept[0] == table else make(table, before)
            taken.append((before, table, decoder))
            return decoder

        yield take
        # Not after an exception.
        with self._lock:
            for before, table, decoder in taken:
                self._idle[before].append((table, decoder))


@lru_cache(maxsize=_STREAMS)
def kept_stream(text: str) -> KeptStream:
    """What this process keeps of the stream with this configuration. ``text``: JSON of its Config."""
    return KeptStream(text)
