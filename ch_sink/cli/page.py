"""Content of a running job's page: `status` with the job's own figures, dead letters, and their retry."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ch_sink.cli.dead_letters import as_json, retried
from ch_sink.errors import ChSinkError, StreamFailed

if TYPE_CHECKING:
    from ch_sink.config import Config
    from ch_sink.observe.job_view import Live

log = logging.getLogger("ch_sink")

_FRESH = 5.0
"""Seconds for which what the ledgers and brokers said is shown again."""
_TOTALS = ("rows", "deletes", "dead_letters", "deduplicated", "out_of_range")
"""Figures that `status` counts since the stream began, and a job since the job began."""
_LETTERS = 100
"""The most dead letters of a stream that are shown."""


class JobPage:
    """The page's data. May be used by several threads."""

    def __init__(self, live: "Live", streams: "Callable[[], Sequence[Config]]") -> None:
        """``streams``: the configurations of the job's streams as they are now."""
        self._live, self._streams = live, streams
        self._lock, self._explaining = threading.Lock(), threading.Lock()
        self._known: tuple[float, dict[str, dict[str, Any]]] = (-_FRESH, {})

    def streams(self) -> Sequence[Mapping[str, Any]]:
        """See PageData."""
        known, now = self._statuses(), time.time()
        found = {stream.stream: stream.as_json(now) for stream in self._live.snapshot()}
        return [_shown(known.get(name, {}), mine) for name, mine in found.items()]

    def dead_letters(self, stream: str, *, whole: bool) -> Sequence[Mapping[str, Any]]:
        """See PageData."""
        from ch_sink.wiring.letters import Letters

        with Letters.of(self._config(stream)) as letters:
            return [as_json(one, whole=whole) for one in letters.newest(_LETTERS, whole=whole)]

    def explain(self, stream: str, key: Mapping[str, Any]) -> Mapping[str, Any]:
        """See PageData. One at a time: it reads the whole topic."""
        from ch_sink.trust.biography import Biography
        from ch_sink.trust.one_key import explained

        config = self._config(stream)
        if not self._explaining.acquire(blocking=False):
            raise StreamFailed("another row is being explained right now", hint="Try again in a moment.")
        try:
            explained(config, life := Biography(dict(key)))
            found = life.as_json()
            # A browser's numbers have 53 bits.
            return found | {"events": [event | {"position": str(event["position"])} for event in found["events"]]}
        finally:
            self._explaining.release()

    def retry(self, stream: str) -> Mapping[str, Any]:
        """See PageData. The stream pauses for as long as the retry takes."""
        from ch_sink.wiring.letters import Letters

        config = self._config(stream)
        with Letters.of(config) as letters:
            entry = retried(config, letters, None)
        log.info("%s: dead letters retried from the page: %d applied", stream, entry["applied"])
        return {name: len(n) if isinstance(n, list) else n for name, n in entry.items()}

    def _config(self, stream: str) -> "Config":
        for config in self._streams():
            if config.stream_name == stream:
                return config
        raise LookupError(f"the job has no stream {stream!r}")

    def _statuses(self) -> dict[str, dict[str, Any]]:
        """The streams as `status` shows them, some seconds old at most; the last known ones during an outage."""
        from ch_sink.discovery.statuses import statuses

        with self._lock:
            asked, known = self._known
            if time.monotonic() - asked >= _FRESH:
                try:
                    known = {seen.stream: seen.as_json() for seen in statuses(self._streams(), log.debug)}
                except ChSinkError as error:
                    log.debug("the page shows earlier figures: %s", error)
                self._known = time.monotonic(), known
            return known


def _shown(known: Mapping[str, Any], mine: Mapping[str, Any]) -> dict[str, Any]:
    """The status of a stream, with the job's own figures where these are newer.

    Totals are those of `status`, since the job counts from its start on: it has not seen a dead letter of the one
    before. Nothing has come to the place of an error that is over.
    """
    newer = {name: figure for name, figure in mine.items() if figure is not None or name in ("error", "next")}
    return {**mine, **known, **newer, **{name: known[name] for name in _TOTALS if name in known}}
