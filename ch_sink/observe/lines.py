"""A running job in lines of its log."""

import logging
import math
import threading
import time
from collections.abc import Callable
from typing import Self

from ch_sink.observe.picture import Album, JobPicture

__all__ = ["Lines"]

log = logging.getLogger("ch_sink")

_SELDOM = 30
"""How many times as long as a picture takes passes at least from one to the next."""


class Lines:
    """Writes the job in one line to the log: when what it does changes, and every minute."""

    def __init__(self, look: Callable[[], JobPicture], *, every: float = 60.0, step: float = 1.0) -> None:
        self._look, self._every, self._step = look, every, step
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ch_sink lines", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        steps, minutes = Album(), Album()
        kind, said = "", -math.inf
        while True:
            began = time.monotonic()
            picture = self._look()
            seen = steps.add(picture)
            now = seen.doing or ("live" if seen.done is None else "catching up")
            if said < 0:
                minutes.add(picture)
            if seen.doing and now != kind:
                log.info("%s", seen.doing)
            elif not seen.doing and (now != kind or picture.time - said >= self._every):
                log.info("%s", minutes.add(picture).line())
            if now != kind or picture.time - said >= self._every:
                said = picture.time
            kind = now
            # Pictures of thousands of streams take a while, in which the job does not get on.
            if self._end.wait(max(self._step, min(_SELDOM * (time.monotonic() - began), self._every))):
                return
