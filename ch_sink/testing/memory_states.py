"""The states of streams in memory; see `ch_sink.ports.stream_states`."""

import itertools
import time
from collections.abc import Callable, Mapping, Sequence

from ch_sink.ports.stream_states import Alive, Compared, Condition, RecordedState, Request

__all__ = ["MemoryStreamStates"]


class MemoryStreamStates:
    """The StreamStates of all jobs that share this object. ``clock``: seconds since 1970."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._numbers = itertools.count(1)
        self.requests: dict[str, tuple[int, Request]] = {}
        self.conditions: dict[str, tuple[int, Condition]] = {}
        self.beats: dict[str, tuple[float, Alive]] = {}
        self.compared: dict[str, Compared] = {}
        self.reads = 0

    def read(self, streams: Sequence[str]) -> dict[str, RecordedState]:
        self.reads += 1
        return {name: self._recorded(name) for name in streams}

    def mark(self) -> object:
        return tuple(self.requests.items()), tuple((name, c.at) for name, c in self.compared.items())

    def ask(self, requests: Mapping[str, Request]) -> None:
        self.requests |= {name: (next(self._numbers), request) for name, request in requests.items()}

    def note(self, conditions: Mapping[str, Condition]) -> None:
        self.conditions |= {name: (next(self._numbers), condition) for name, condition in conditions.items()}

    def beat(self, beats: Mapping[str, Alive]) -> None:
        self.beats |= {name: (self._clock(), alive) for name, alive in beats.items()}

    def compare(self, comparisons: Mapping[str, Compared]) -> None:
        self.compared |= comparisons

    def _recorded(self, name: str) -> RecordedState:
        asked, request = self.requests.get(name, (0, None))
        noted, condition = self.conditions.get(name, (0, None))
        at, alive = self.beats.get(name, (0.0, None))
        quiet = self._clock() - at if alive else 0.0
        return RecordedState(request, condition, asked > noted, alive, quiet, self.compared.get(name))
