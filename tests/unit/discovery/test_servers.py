"""What is found out of the servers behind a URL, and what `init` refuses beside a replicated table."""

from itertools import cycle
from typing import Any

import pytest

from ch_sink.config import Config
from ch_sink.discovery import init_plan
from ch_sink.discovery import servers as under_test
from ch_sink.discovery.look import Sampled
from ch_sink.discovery.servers import expect_same_engine, servers_of
from ch_sink.errors import ConfigError
from ch_sink.table.model import Engine, Family, TargetTable
from tests.support.servers import Request, Rows, Servers

TABLE = TargetTable("d", "t", Engine(Family.REPLACING, "ReplicatedReplacingMergeTree", "v", replicated=True), ())
OWN = ("ch_sink_ledger", "ch_sink_pending", "ch_sink_handover", "ch_sink_dead_letters", "ch_sink_columns")


def config(**init: str) -> Config:
    return Config.model_validate(
        {
            "kafka": {"bootstrap.servers": "k:9092", "topic": "a.b.t"},
            "clickhouse": {"url": "http://balancer:8123", "database": "d", "table": "t"},
            "init": init,
        }
    )


def server(existing: tuple[str, ...] = OWN, replicas: int = 2) -> Any:
    def answer(request: Request) -> Rows:
        if "system.replicas" in request.sql:
            return [{"n": replicas}]
        return [{"name": name} for name in existing] if "system.tables" in request.sql else []

    return answer


def test_every_server_that_answers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    names = cycle("ab")

    def another(_: object) -> Any:
        # A fresh client: nobody has answered it yet.
        client = Servers(next(names), server()).client()
        client.close = lambda: None  # type: ignore[method-assign]
        return client

    monkeypatch.setattr(under_test, "Client", another)
    found = servers_of(config(), Servers("a", server()).client(), TABLE)
    assert found.names == ("a", "b")
    assert (found.replicas, found.plain_state_tables) == (2, ())


@pytest.mark.parametrize(
    ("existing", "replication", "refused"),
    [((), "none", True), (OWN[:4], "none", True), (OWN, "none", False), ((), "path", False), ((), "server", False)],
)
def test_init_makes_no_plain_tables_beside_a_replicated_target(
    existing: tuple[str, ...], replication: str, refused: bool
) -> None:
    client = Servers("a", server(existing)).client()
    if not refused:
        expect_same_engine(config(replication=replication), client, TABLE)
        return
    with pytest.raises(ConfigError, match=r"ch_sink_columns.*would not be") as caught:
        expect_same_engine(config(replication=replication), client, TABLE)
    assert "init.replication: path or server" in (caught.value.hint or "")


def test_init_asks_before_it_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init_plan, "detect", lambda *_: TABLE)
    with pytest.raises(ConfigError, match="would not be"):
        init_plan.plan_init(config(), Sampled(None, 0), Servers("a", server(())).client())
