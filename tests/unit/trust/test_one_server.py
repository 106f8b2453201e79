"""Commands with tables of their own, and tables that are exchanged, where a URL leads to several servers."""

import re
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from ch_sink.clickhouse import Client
from ch_sink.errors import ClickHouseError, StreamFailed
from ch_sink.model.policy import policy_of
from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.trust import repair, verify
from ch_sink.trust import shadow as under_test
from ch_sink.trust.shadow import shadow_of, shadow_tables, staying
from ch_sink.trust.subject import Options
from ch_sink.trust.successor import Successor
from ch_sink.types.column import Column
from tests.support.servers import Request, Rows, Servers

ENGINE = Engine(Family.REPLACING, "ReplicatedReplacingMergeTree", "_version", replicated=True)
COLUMNS = (Column("id", "UInt64"), Column("_version", "UInt128"))
TABLE = TargetTable("d", "t", ENGINE, COLUMNS, sorting_key=("id",))


class Databases:
    """Servers that have each their own tables, and answer in turns."""

    def __init__(self, turns: str) -> None:
        self.tables: dict[str, dict[str, str]] = {name: {} for name in turns}
        self.servers = Servers(turns, self._answer)

    def client(self, server: str = "") -> Client:
        return self.servers.client(server=server)

    def _answer(self, request: Request) -> Rows | None:
        mine = self.tables[request.server]
        name = re.search(r"`d`\.`(\w+)`", request.sql)
        if request.sql.startswith("CREATE") and name:
            mine[name[1]] = request.sql.rpartition("COMMENT '")[2][:-1]
        elif request.sql.startswith("DROP") and name:
            mine.pop(name[1], None)
        elif "system.tables" in request.sql:
            return [{"name": key, "comment": text} for key, text in mine.items()]
        elif name and name[1] not in mine:
            raise ClickHouseError(f"no table {name[1]}", code=60)
        return []


@pytest.mark.parametrize("turns", ["a", "ab", "ba", "abc", "bba"])
def test_a_comparison_finds_its_tables_whichever_server_is_asked_first(turns: str) -> None:
    servers = Databases(turns)
    client = servers.client(server="a")
    with shadow_tables(client, shadow_of(TABLE, "d", ("id",), COLUMNS[:1])) as shadow:
        for _ in range(3):
            client.command(f"INSERT INTO {shadow.differences} SELECT 1", again=False)
            client.rows(f"SELECT 1 FROM {shadow.table.qualified}")
            shadow.expect_own(client)
        own = set(servers.tables["a"])
        assert {shadow.table.name, shadow.differences[5:-1]} <= own
        # None that was made elsewhere takes what is meant for these.
        assert not own & {name for server, has in servers.tables.items() if server != "a" for name in has}
    assert not servers.tables["a"]


def test_what_a_killed_run_left_under_another_name_is_dropped() -> None:
    servers = Databases("a")
    servers.tables["a"] = {"t__ch_sink_shadow_12ab34": "x", "t__ch_sink_shadow_12ab34_differences_77": "x"}
    with shadow_tables(servers.client(server="a"), shadow_of(TABLE, "d", ("id",), COLUMNS[:1])):
        assert len(servers.tables["a"]) == 2
    assert not servers.tables["a"]


@pytest.mark.parametrize(("replicated", "server"), [(True, "b"), (False, "")])
def test_a_comparison_stays_with_the_server_that_answers_first(
    monkeypatch: pytest.MonkeyPatch, replicated: bool, server: str
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(under_test, "connect", lambda settings: made.append(settings) or "another")
    client = Databases("b").servers.client(replicated=replicated)
    assert staying(client, TABLE) == ("another" if replicated else client)
    assert [settings.server for settings in made] == [server] * replicated


@pytest.mark.parametrize("command", [verify.verified, lambda *given: nullcontext(repair.repaired(*given, apply=True))])
def test_verify_and_repair_do(monkeypatch: pytest.MonkeyPatch, command: Any) -> None:
    def stays(*_: object) -> Client:
        raise ClickHouseError("stays")

    for module in (verify, repair):
        monkeypatch.setattr(module, "staying", stays)
    subject: Any = SimpleNamespace(client=None, table=TABLE, key=("id",))
    with pytest.raises(ClickHouseError, match="stays"), command(subject, Options()):
        pass


@pytest.mark.parametrize(
    ("replicas", "cluster", "database", "refused"),
    [
        (1, None, "Atomic", False),
        (2, None, "Atomic", True),
        (2, "pair", "Atomic", False),
        (2, None, "Replicated", False),
    ],
)
def test_tables_are_exchanged_on_all_replicas_or_on_none(
    replicas: int, cluster: str | None, database: str, refused: bool
) -> None:
    def answer(request: Request) -> Rows:
        if "system.replicas" in request.sql:
            return [{"n": replicas}]
        if "system.databases" in request.sql:
            return [{"engine": database}]
        return [{"dependencies_database": [], "dependencies_table": []}] if "engine_full" in request.sql else []

    successor = Successor(Servers("a", answer).client(), TABLE, policy_of(), cluster=cluster)
    if not refused:
        successor.expect_possible()
        return
    with pytest.raises(StreamFailed, match=r"has 2 replicas, and clickhouse\.cluster is not set") as caught:
        successor.expect_possible()
    assert "system.clusters" in (caught.value.hint or "")
