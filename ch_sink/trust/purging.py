"""A running job purges the tables of its streams by itself: those that state ``purge_after``, once an hour.

See `ch_sink.trust.purge` for what is removed and why that is safe beside the stream. What refuses a purge is said once.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence

from ch_sink.config import Config
from ch_sink.discovery.wiring import topic_offsets
from ch_sink.errors import ChSinkError
from ch_sink.model.address import counted
from ch_sink.trust.own_tables import own_tables
from ch_sink.trust.purge import SETTLE, Purged, purged
from ch_sink.trust.wiring import subject_of

__all__ = ["EVERY", "Purging", "purge_stream"]

log = logging.getLogger("ch_sink")

EVERY = 3600.0
"""Seconds between two purges of a table."""
_FIRST = SETTLE + 60.0
"""Seconds after the start; what was finished later than `SETTLE` ago is not purged."""
_DAY = 86_400.0


def purge_stream(
    config: Config, *, apply: bool, settle: float = SETTLE, say: Callable[[str], None] = lambda _: None
) -> Purged:
    """Purge what was deleted longer ago than ``purge_after``, which the configuration states. Raises ChSinkError."""
    assert config.purge_after is not None
    with topic_offsets(config) as offsets:
        until = offsets.at_time(config.kafka.topic, int((time.time() - config.purge_after) * 1000))
        subject = subject_of(config)
        return purged(subject, own_tables(config, subject.client), until, apply=apply, settle=settle, say=say)


class Purging:
    """Purges in a thread of its own, one stream after the other."""

    def __init__(
        self,
        streams: Callable[[], Sequence[Config]],
        working: Callable[[], Collection[str]],
        purge: Callable[[Config], Purged] = lambda config: purge_stream(config, apply=True),
    ) -> None:
        """
        Args:
            streams: the configurations of the job's streams as they are now.
            working: names of the streams on which this job works now.
        """
        self._streams, self._working, self._purge = streams, working, purge
        self._said: dict[str, str] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ch_sink purge", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End; a purge that runs is left to the server, which finishes or forgets it: both do no harm."""
        self._over.set()

    def step(self) -> None:
        """Purge the tables of the streams that state it. What fails is said, and tried again the next time."""
        try:
            due = [config for config in self._streams() if config.purge_after is not None]
        except ChSinkError as error:
            log.debug("purge: the files cannot be read: %s", error)
            return
        for config in due:
            if self._over.is_set():
                return
            if config.stream_name in self._working():
                self._one(config)

    def _one(self, config: Config) -> None:
        name = config.stream_name
        try:
            done = self._purge(config)
        except ChSinkError as error:
            if self._said.get(name) != error.message:
                log.warning("%s is not purged: %s", name, error.message, extra={"stream": name})
            self._said[name] = error.message
            return
        except Exception as error:  # noqa: BLE001 (the thread goes on with the other streams)
            log.warning("%s is not purged: %s: %s", name, type(error).__name__, error, extra={"stream": name})
            return
        self._said.pop(name, None)
        if done.rows:
            days = (config.purge_after or 0.0) / _DAY
            log.info(
                "%s: %s of %s, deleted more than %g days ago, left the disk",
                name, counted(done.rows, "row"), done.table, round(days, 2), extra={"stream": name},
            )  # fmt: skip

    def _run(self) -> None:
        wait = _FIRST
        while not self._over.wait(wait):
            self.step()
            wait = EVERY
