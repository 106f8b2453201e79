"""Reads behind a balancer: which server's answer counts."""

from itertools import cycle

import pytest

from ch_sink.clickhouse.replicas import Replicas, has_quorum
from ch_sink.errors import ClickHouseUnavailable


class Servers:
    """Servers behind a balancer that takes turns as told. Each lacks what was written since its last sync."""

    def __init__(self, turns: str) -> None:
        self.turns, self.last = cycle(turns), ""
        self.written = 0
        self.has = dict.fromkeys(turns, 0)
        self.requests = 0

    def _answer(self) -> str:
        self.requests += 1
        self.last = next(self.turns)
        return self.last

    def write(self) -> None:
        self.written += 1
        self.has[self._answer()] = self.written

    def sync(self, table: str) -> None:
        self.has[self._answer()] = self.written

    def read(self) -> int:
        return self.has[self._answer()]

    def replicas(self) -> Replicas:
        return Replicas(lambda: self.last, self.sync)


@pytest.mark.parametrize("turns", ["a", "ab", "aab", "abc", "abcb", "aabbb"])
def test_a_read_sees_every_earlier_write_whichever_server_answers(turns: str) -> None:
    servers = Servers(turns)
    for _ in range(20):
        servers.write()
        assert servers.replicas().current("t", servers.read) == servers.written


def test_without_it_a_lagging_server_answers() -> None:
    servers = Servers("ab")
    servers.write()
    assert servers.read() == 0


def test_a_server_that_stays_costs_one_more_request() -> None:
    servers = Servers("a")
    servers.replicas().current("t", servers.read)
    assert servers.requests == 2


def test_answers_from_ever_other_servers_are_refused() -> None:
    servers = Servers("abcdefghijklmnopqrstuvwxyz0123456789")
    with pytest.raises(ClickHouseUnavailable, match="another server") as caught:
        servers.replicas().current("t", servers.read)
    assert "insert_quorum" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({}, False),
        ({"insert_quorum": "2"}, False),
        ({"insert_quorum": "2", "insert_quorum_parallel": "0"}, True),
        ({"insert_quorum": "auto", "insert_quorum_parallel": "0"}, True),
        ({"insert_quorum": "0", "insert_quorum_parallel": "0"}, False),
    ],
)
def test_only_a_quorum_one_insert_at_a_time_makes_sequential_consistency_hold(
    settings: dict[str, str], wanted: bool
) -> None:
    assert has_quorum(settings) is wanted
