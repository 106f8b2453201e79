"""What the log says of outages: one line when one begins, one a minute, one when it ends, however many streams wait."""

import logging
from dataclasses import dataclass, field

from ch_sink.errors import ChSinkError
from ch_sink.model.address import counted

__all__ = ["Outages"]

log = logging.getLogger("ch_sink")

_REPEAT = 60.0
Kind = type[ChSinkError]


@dataclass(slots=True)
class _Outage:
    began: float
    said: float
    """When the last line was written."""
    error: ChSinkError
    streams: set[str] = field(default_factory=set)


class Outages:
    """The outages of one job, by the type of the error, which says which server is away.

    Times are seconds of a clock that never steps back.
    """

    def __init__(self) -> None:
        self._open: dict[Kind, _Outage] = {}

    def waits(self, stream: str, error: ChSinkError, now: float) -> None:
        """The stream waits because of this error."""
        for other in [kind for kind in self._open if kind is not type(error)]:
            self._leave(other, stream)
        found = self._open.get(type(error))
        if found is None:
            found = self._open[type(error)] = _Outage(now, now, error)
            log.warning("%s waits: %s", stream, error, extra={"stream": stream})
        found.error = error
        found.streams.add(stream)

    def over(self, stream: str, now: float) -> None:
        """The stream works again, or waits no longer for another reason."""
        for kind, outage in list(self._open.items()):
            if stream in outage.streams and self._leave(kind, stream):
                log.warning("%s goes on after %s", stream, _span(now - outage.began), extra={"stream": stream})

    def remind(self, now: float) -> None:
        """Write the line of the minute."""
        for outage in self._open.values():
            if now - outage.said >= _REPEAT:
                outage.said = now
                who = counted(len(outage.streams), "stream")
                log.warning("%s waiting for %s: %s", who, _span(now - outage.began), outage.error)

    def _leave(self, kind: Kind, stream: str) -> bool:
        """Take the stream out; returns whether it was the last one."""
        outage = self._open[kind]
        outage.streams.discard(stream)
        if not outage.streams:
            del self._open[kind]
        return not outage.streams


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
