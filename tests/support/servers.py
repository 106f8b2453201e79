"""Several ClickHouse servers behind one URL, as a client meets them: without any of them."""

import threading
from collections.abc import Callable, Iterable, Mapping
from itertools import cycle
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from ch_sink.clickhouse import Client, Retry
from ch_sink.clickhouse.arrow_io import one_batch, to_stream
from ch_sink.clickhouse.replicas import Replicas
from tests.support.endpoint import settings_for

Rows = list[dict[str, Any]]


class Request(SimpleNamespace):
    """One request: the server that gets it, its SQL and its settings."""

    server: str
    sql: str
    settings: dict[str, Any]

    @property
    def allowed(self) -> bool:
        """Whether the statement may be carried out by this server."""
        guard = str(self.settings.get("additional_table_filters", ""))
        return not guard or rf"\'{self.server}\'" in guard


class Servers:
    """Servers behind a balancer. ``answer`` gives the rows of a request, or raises what the server would."""

    def __init__(self, turns: Iterable[str], answer: Callable[[Request], Rows | pa.Table | None]) -> None:
        self._turns, self._answer = cycle(turns), answer
        self.requests: list[Request] = []
        self.parted = 0

    def client(self, *, server: str = "", replicated: bool = True, **settings: str) -> Client:
        """A client of these servers; all tables are replicated, or none is."""
        client = Client.__new__(Client)
        retry = Retry(attempts=2, sleep=lambda _: None)
        client.settings = settings_for(
            "http://balancer:8123", retry=retry, server=server, settings=tuple(settings.items())
        )
        client.retry, client.slow_downs = retry, 0
        client._local, client._replicated, client._clauses = threading.local(), {}, {}
        client._driver = _Driver(self, client)  # type: ignore[assignment]
        client.is_replicated = lambda *_: replicated  # type: ignore[method-assign]
        client.replicas = Replicas(lambda: client.answered_by, client.sync, client._lags, self._part)
        return client

    def sql(self) -> list[str]:
        """Server and statement of each request."""
        return [f"{one.server}: {one.sql}" for one in self.requests]

    def ask(self, client: Client, sql: str, settings: Mapping[str, Any] | None) -> Any:
        request = Request(server=next(self._turns), sql=sql, settings=dict(settings or {}))
        self.requests.append(request)
        client._local.server = request.server
        return self._answer(request)

    def _part(self) -> None:
        self.parted += 1


class _Known(dict[str, Any]):
    """The settings of a server that has all there are."""

    def __contains__(self, _: object) -> bool:
        return True


class _Driver:
    """What the client uses of clickhouse-connect."""

    server_version = "26.9"

    def __init__(self, servers: Servers, client: Client) -> None:
        self._servers, self._client = servers, client
        self.server_settings = _Known()

    def usable(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return dict(settings)

    def query(self, sql: str, *, parameters: object, settings: Mapping[str, Any]) -> Any:
        rows = self._servers.ask(self._client, sql, settings) or []
        return SimpleNamespace(named_results=lambda: iter(rows))

    def raw_query(self, sql: str, *, parameters: object, settings: Mapping[str, Any], **_: object) -> bytes:
        return bytes(to_stream(one_batch(self._servers.ask(self._client, sql, settings))))

    def command(self, sql: str, *, parameters: object, settings: Mapping[str, Any], external_data: object) -> None:
        self._servers.ask(self._client, sql, settings)

    def raw_insert(
        self, statement: str | None, _: object, body: Any, *, settings: Mapping[str, Any] | None, fmt: str
    ) -> Any:
        sql = statement or bytes(body).partition(b"\n")[0].decode()
        self._servers.ask(self._client, sql, settings)
        return SimpleNamespace(written_rows=1)
