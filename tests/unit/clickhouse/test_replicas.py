"""Which server's answer counts where a URL leads to several."""

from itertools import cycle

import pytest

from ch_sink.clickhouse import Client, max_version
from ch_sink.clickhouse.replicas import AnsweredElsewhere, Replicas, has_quorum
from ch_sink.clickhouse.state_table import StateTable
from ch_sink.errors import ClickHouseError, ClickHouseUnavailable
from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.types.column import Column
from tests.support.servers import Request, Rows, Servers

TABLE = TargetTable(
    "d",
    "t",
    Engine(Family.REPLACING, "ReplicatedReplacingMergeTree", "_version", replicated=True),
    (Column("id", "UInt64"), Column("_version", "UInt128")),
    sorting_key=("id",),
)
TURNS = ["a", "ab", "aab", "abc", "abcb", "aabbb"]


class Lagging:
    """Replicas of one table. Each lacks what was written since its last sync."""

    def __init__(self, turns: str) -> None:
        self.written = 0
        self.has = dict.fromkeys(turns, 0)
        self.servers = Servers(turns, self._answer)
        self.done: list[tuple[str, int]] = []
        """Server and rows of each statement that was carried out."""

    def client(self, **options: str) -> Client:
        return self.servers.client(**options)

    def write(self) -> None:
        self.written += 1

    def _answer(self, request: Request) -> Rows | None:
        if request.sql.startswith("SYSTEM SYNC REPLICA"):
            self.has[request.server] = self.written
        elif request.sql.startswith("INSERT"):
            if not request.allowed:
                raise ClickHouseError("guarded", code=395)
            self.done.append((request.server, self.has[request.server]))
        return [{"n": self.has[request.server], "__ch_sink_top": self.has[request.server]}]


@pytest.mark.parametrize("turns", TURNS)
def test_a_read_sees_every_earlier_write_whichever_server_answers(turns: str) -> None:
    lagging = Lagging(turns)
    client = lagging.client()
    for _ in range(20):
        lagging.write()
        assert client.rows("SELECT n FROM d.t", of=TABLE)[0]["n"] == lagging.written
        assert StateTable(client, "d", "ledger").rows("SELECT n FROM $table")[0]["n"] == lagging.written


@pytest.mark.parametrize("turns", TURNS)
def test_a_statement_that_reads_does_nothing_on_a_server_that_lags(turns: str) -> None:
    lagging = Lagging(turns)
    client = lagging.client()
    for number in range(1, 10):
        lagging.write()
        client.command("INSERT INTO d.t SELECT n FROM d.t", of=TABLE, again=False)
        assert [rows for _, rows in lagging.done] == list(range(1, number + 1))


def test_without_a_name_of_what_is_read_a_lagging_server_answers() -> None:
    lagging = Lagging("ab")
    lagging.write()
    assert lagging.client().rows("SELECT n FROM d.t")[0]["n"] == 0


@pytest.mark.parametrize("turns", TURNS)
def test_the_highest_version_is_that_of_a_replica_that_has_all(turns: str) -> None:
    lagging = Lagging(turns)
    client = lagging.client()
    for _ in range(4):
        lagging.write()
        assert max_version(client, TABLE) == lagging.written


def test_a_server_that_stays_costs_one_more_request_which_waits_for_no_merge() -> None:
    lagging = Lagging("a")
    lagging.client().rows("SELECT n FROM d.t", of=TABLE)
    assert lagging.servers.sql() == ["a: SYSTEM SYNC REPLICA `d`.`t` LIGHTWEIGHT", "a: SELECT n FROM d.t"]


def test_deletes_that_a_replica_has_still_to_carry_out_count() -> None:
    # LIGHTWEIGHT waits for no mutation.
    lagging = Lagging("a")
    lagging.client().rows("SELECT n FROM d.t", of=TABLE)
    assert lagging.servers.requests[-1].settings["apply_mutations_on_fly"] == 1


@pytest.mark.parametrize(
    "options", [{"insert_quorum": "auto", "insert_quorum_parallel": "0"}, {"replicated": False}], ids=str
)
def test_where_no_server_lags_nothing_is_brought_up_to_date(options: dict[str, str]) -> None:
    lagging = Lagging("ab")
    lagging.client(**options).rows("SELECT n FROM d.t", of=TABLE)
    assert lagging.servers.sql() == ["a: SELECT n FROM d.t"]
    assert lagging.servers.requests[0].settings == {"select_sequential_consistency": 1}


def test_answers_from_ever_other_servers_are_refused() -> None:
    servers = cycle("abcdefghijklmnopqrstuvwxyz0123456789")
    replicas = Replicas(lambda: next(servers), lambda _: None, lambda _: True)
    with pytest.raises(ClickHouseUnavailable, match="a server that lacks some of its parts") as caught:
        replicas.current("t", lambda: 1)
    assert "insert_quorum" in (caught.value.hint or "")


class Own:
    """Servers of which one has a table that the others lack."""

    def __init__(self, turns: str, code: int = 60) -> None:
        self.servers, self.code = Servers(turns, self._answer), code
        self.done = 0

    def _answer(self, request: Request) -> Rows | None:
        if request.server != "b":
            if self.code:
                raise ClickHouseError("no such table", code=self.code)
            return [{"n": "another"}]
        self.done += 1
        return [{"n": "b"}]


@pytest.mark.parametrize("turns", ["b", "ab", "abc", "aaab"])
@pytest.mark.parametrize("code", [0, 60, 497])
def test_a_client_that_stays_with_a_server_repeats_a_read_until_that_one_answers(turns: str, code: int) -> None:
    own = Own(turns, code)
    assert own.servers.client(server="b").rows("SELECT n FROM mine") == [{"n": "b"}]
    assert own.servers.parted == len(own.servers.requests) - 1


@pytest.mark.parametrize("code", [60, 395])
def test_what_may_not_be_repeated_is_sent_again_where_it_has_done_nothing(code: int) -> None:
    own = Own("aab", code)
    own.servers.client(server="b").command("INSERT INTO mine", again=False)
    assert own.done == 1


@pytest.mark.parametrize(("code", "error"), [(0, AnsweredElsewhere), (497, ClickHouseError)])
def test_what_may_not_be_repeated_ends_the_command_if_another_server_may_have_done_it(
    code: int, error: type[Exception]
) -> None:
    own = Own("ab", code)
    with pytest.raises(error):
        own.servers.client(server="b").command("INSERT INTO mine", again=False)
    assert len(own.servers.requests) == 1


def test_a_server_that_no_longer_answers_is_named() -> None:
    with pytest.raises(ClickHouseUnavailable, match="server b, which this command works on") as caught:
        Own("a").servers.client(server="b").rows("SELECT n FROM mine")
    assert "CH_SINK__CLICKHOUSE__URL" in (caught.value.hint or "")


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
