"""The streams of a job as its roster keeps them, with their states in ClickHouse."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ch_sink.clickhouse import ClickHouseSettings, ClickHouseStreamStates, Retry, connect
from ch_sink.config import Config
from ch_sink.ports import Alive, Compared, Condition, RecordedState, Request
from ch_sink.stream.patience import Patience
from ch_sink.stream.roster import Member

__all__ = ["LazyStates", "NoStates", "members_of"]

_TIMEOUT = 30.0
"""Of one exchange of states, in seconds. A failed one is not repeated: the next comes within a second."""


def members_of(configs: Sequence[Config]) -> list[Member]:
    """The streams of a job with their states. Connects to nothing yet."""
    ledgers: dict[LazyStates, LazyStates] = {}
    made = []
    for config in configs:
        settings = replace(ClickHouseSettings(**config.clickhouse.connection()), retry=Retry(1), timeout=_TIMEOUT)
        place = LazyStates(settings, config.state_database, config.tables.ledger)
        patience = Patience(math.inf if config.retry_for is None else config.retry_for)
        made.append(Member(config.stream_name, ledgers.setdefault(place, place), config.fingerprint(), patience))
    return made


class NoStates:
    """Of streams that have no ledger: nothing is recorded, and nobody can ask for anything."""

    def read(self, streams: Sequence[str]) -> dict[str, RecordedState]:
        return {stream: RecordedState() for stream in streams}

    def mark(self) -> object:
        return 0

    def ask(self, requests: Mapping[str, Request]) -> None:
        del requests

    def note(self, conditions: Mapping[str, Condition]) -> None:
        del conditions

    def beat(self, beats: Mapping[str, Alive]) -> None:
        del beats

    def compare(self, comparisons: Mapping[str, Compared]) -> None:
        del comparisons


@dataclass(frozen=True)
class LazyStates:
    """The states in one ledger; connects when it is asked, so that a job can wait for a server that is away."""

    settings: ClickHouseSettings
    database: str
    table: str

    def read(self, streams: Sequence[str]) -> dict[str, RecordedState]:
        return self._states.read(streams)

    def mark(self) -> object:
        return self._states.mark()

    def ask(self, requests: Mapping[str, Request]) -> None:
        self._states.ask(requests)

    def note(self, conditions: Mapping[str, Condition]) -> None:
        self._states.note(conditions)

    def beat(self, beats: Mapping[str, Alive]) -> None:
        self._states.beat(beats)

    def compare(self, comparisons: Mapping[str, Compared]) -> None:
        self._states.compare(comparisons)

    @cached_property
    def _states(self) -> ClickHouseStreamStates:
        return ClickHouseStreamStates(connect(self.settings), self.database, self.table)
