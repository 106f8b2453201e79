"""The configurations of a running job: a stream that is resumed reads its file again."""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable

from ch_sink.config import Config
from ch_sink.errors import ChSinkError

__all__ = ["Configurations"]

log = logging.getLogger("ch_sink")

_FRESH = 2.0
"""Seconds for which what was read counts as new."""
Changed = Callable[[Config], None]


class Configurations:
    """The configuration of each stream, by name. Safe for several threads."""

    def __init__(
        self,
        configs: Iterable[Config],
        reload: Callable[[], Iterable[Config]] | None = None,
        changed: Changed = lambda _: None,
    ) -> None:
        """
        Args:
            reload: reads the files again; None if there are none. Raises ChSinkError.
            changed: is told of each configuration that is another than before.
        """
        self._current = {config.stream_name: config for config in configs}
        self._reload, self._changed = reload, changed
        self._stale: set[str] = set()
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._read: tuple[float, dict[str, Config]] = (-math.inf, {})

    def add(self, config: Config) -> None:
        """A stream that joins the job."""
        with self._lock:
            self._current[config.stream_name] = config

    def outdated(self, name: str) -> None:
        """The stream was resumed: its file may have been changed before."""
        with self._lock:
            self._stale.add(name)

    def of(self, name: str) -> Config:
        """The configuration of a stream, read again if it is outdated. A file that is wrong by now changes nothing."""
        with self._lock:
            stale = name in self._stale and self._reload is not None
            self._stale.discard(name)
            current = self._current[name]
        if not stale or self._reload is None:
            return current
        try:
            found = self._again(self._reload).get(name, current)
        except ChSinkError as error:
            log.warning("%s goes on with the configuration it has: %s", name, error, extra={"stream": name})
            return current
        if found != current:
            with self._lock:
                self._current[name] = found
            log.warning("%s has another configuration now", name, extra={"stream": name})
            self._changed(found)
        return found

    def _again(self, reload: Callable[[], Iterable[Config]]) -> dict[str, Config]:
        """The files now; streams that are resumed together share one look."""
        with self._reading:
            if time.monotonic() - self._read[0] >= _FRESH:
                self._read = (time.monotonic(), {config.stream_name: config for config in reload()})
            return self._read[1]
