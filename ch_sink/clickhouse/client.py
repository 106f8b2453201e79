"""The connection to ClickHouse: Arrow over HTTP in both directions, the sink's own errors, retries."""

import logging
import os
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from math import ceil
from typing import Any, TypeVar

import pyarrow as pa
from clickhouse_connect import common
from clickhouse_connect.driver.httpclient import HttpClient
from urllib3.util import Retry as HttpRetry

from ch_sink.clickhouse.arrow_io import Keys, from_stream, one_batch, to_stream
from ch_sink.clickhouse.replicas import Replicas, Stored, has_quorum
from ch_sink.clickhouse.settings import (
    CUTTING,
    PLAIN_MEANING,
    TOO_MANY_PARTS,
    ClickHouseSettings,
    Retry,
    to_send,
    translated,
)
from ch_sink.errors import ClickHouseError, ConfigError
from ch_sink.table.facts import version_of
from ch_sink.types.sql import literal, quote

log = logging.getLogger(__name__)

T = TypeVar("T")
Settings = Mapping[str, str | int]

PINNED_EVERYWHERE: Settings = {
    # A query without FINAL means all stored rows; profiles for users of ReplacingMergeTree often set it.
    "final": 0,
}
"""Sent with every request, whatever the user's profile or settings say."""

_READ: Settings = {
    # Bytes stay bytes: a String need not be UTF-8.
    "output_format_arrow_string_as_string": 0,
    "output_format_arrow_fixed_string_as_fixed_byte_array": 1,
    "output_format_arrow_low_cardinality_as_dictionary": 0,
    "output_format_arrow_compression_method": "lz4_frame",
}

_LONG = 60_000
"""Characters of up to four bytes: fewer are within ``max_query_size``, 256 KiB by default."""

OLDEST = (25, 8)
"""The oldest version of ClickHouse that is served."""
_TOKEN = "insert_deduplication_token"
_SMALL = 1 << 20
"""Bytes up to which the rows of an insert are copied behind their statement."""

_clients: dict[tuple[int, ClickHouseSettings], "Client"] = {}
_lock = threading.Lock()


class _Driver(HttpClient):
    """The driver takes a 502, which a proxy sends while the server is unavailable, for an answer of the server."""

    def _init_common_settings(self, tz_source: Any) -> None:
        # Before the first question. As without it, a connection that is refused is tried a second time.
        self.http_retries = HttpRetry(total=1, read=False, status=0, status_forcelist=[502], allowed_methods=None)  # type: ignore[assignment]
        # A profile that cuts answers off would cut off the list of the settings that the driver knows.
        self.params.update({name: str(PLAIN_MEANING[name]) for name in CUTTING})
        super()._init_common_settings(tz_source)

    def usable(self, settings: Settings) -> dict[str, Any]:
        """The settings without those that this user cannot set."""
        return self._validate_settings(dict(settings))


class Client:
    """One server, one user. Safe for several threads, but not across a fork.

    Reads, and statements that may be repeated, are retried as the settings' Retry says. Raises ClickHouseError,
    ClickHouseUnavailable and AccessDenied only.

    A request that reads a table names it as ``of``: it then sees all earlier writes to this table, also if the table is
    replicated and a balancer sends each request elsewhere. A statement that does so may read no other replicated table.
    """

    def __init__(self, settings: ClickHouseSettings) -> None:
        self.settings = settings
        self.retry: Retry = settings.retry
        self.slow_downs = 0
        """How often the server refused an insert because a table had too many parts."""
        self.faithful: frozenset[str] = frozenset()
        """Types of which the server was seen to keep the values (`round_trip`)."""
        at = settings.endpoint
        # Retries are decided here, by error code; the driver's shared pool would be inherited by forked processes.
        with translated(settings.url, "connect", settings.password):
            self._driver = _Driver(
                interface=at.interface,
                host=at.host,
                port=at.port,
                proxy_path=at.path,
                username=settings.username,
                password=settings.password,
                # No database: it may not exist yet, and every statement names its own.
                database="",
                settings={**dict(settings.settings), **PINNED_EVERYWHERE},
                # The driver counts whole seconds.
                connect_timeout=max(1, ceil(settings.connect_timeout)),
                send_receive_timeout=max(1, ceil(settings.timeout)),
                verify=settings.verify,
                ca_cert=settings.ca_cert,
                client_cert=settings.client_cert,
                client_cert_key=settings.client_cert_key,
                # By default the driver lets a certificate stand for the password, and sends none.
                tls_mode="strict" if settings.client_cert and settings.password else None,
                http_proxy=settings.http_proxy,
                autogenerate_session_id=False,
                compress=False,
                query_retries=0,
                dedicated_pool=True,
                client_name="ch_sink",
            )
            expect_supported(settings.url, self.server_version)
            known = {name: str(one.value) for name, one in self._driver.server_settings.items()}
            for name, value in to_send(known, dict(settings.settings)).items():
                self._driver.set_client_setting(name, value)

        self._local = threading.local()
        self._replicated: dict[tuple[str, str], bool] = {}
        self._clauses: dict[tuple[tuple[str, str | int], ...], str] = {}
        self._note_servers()
        self.replicas = Replicas(lambda: self.answered_by, self.sync, self._lags, self._driver._backend.http.clear)

    @property
    def answered_by(self) -> str:
        """The name of the server that answered the last request of this thread."""
        return str(getattr(self._local, "server", ""))

    def is_replicated(self, database: str, name: str) -> bool:
        """Whether the table is a Replicated one. Raises ClickHouseError."""
        if (database, name) not in self._replicated:
            # With the sink's own tables beside it, which are asked for next.
            found = self.rows(
                "SELECT name, engine FROM system.tables WHERE database = {database:String} "
                "AND (name = {name:String} OR startsWith(name, 'ch_sink_'))",
                {"database": database, "name": name},
                doing=f"inspect the engine of {database}.{name}",
            )
            for row in found:
                self._replicated[database, str(row["name"])] = str(row["engine"]).startswith("Replicated")
        return self._replicated.get((database, name), False)

    def total_replicas(self, table: Stored) -> int:
        """How many replicas the table has, whether they are up or not; 1 if it is not replicated."""
        found = self.rows(
            "SELECT total_replicas AS n FROM system.replicas "
            "WHERE database = {database:String} AND table = {name:String}",
            {"database": table.database, "name": table.name},
            doing=f"count the replicas of {table.database}.{table.name}",
        )
        return int(found[0]["n"]) if found else 1

    def sync(self, table: str) -> None:
        """Let the server that gets this request fetch all parts of a table (quoted, qualified)."""
        # Without merges, which change no row and may take long.
        self.command(f"SYSTEM SYNC REPLICA {table} LIGHTWEIGHT", doing=f"bring this replica of {table} up to date")

    def _lags(self, table: Stored) -> bool:
        """Whether a server may lack rows of this table that another one has stored."""
        return not has_quorum(dict(self.settings.settings)) and self.is_replicated(table.database, table.name)

    def _answer(self, act: Callable[[], T], again: bool = True, retry: Retry | None = None) -> T:
        """The result of ``act``, repeated after a failure and until the server answers that this client wants."""
        server = self.settings.server

        def once() -> T:
            return self.replicas.only(server, act, again=again) if server else act()

        return (retry or self.retry).run(once, on_retry=self._on_retry) if again else once()

    def _note_servers(self) -> None:
        """Note the server's name of each answer; the driver keeps it to itself."""
        pool = self._driver._backend.http
        urlopen = pool.urlopen

        def noting(*given: Any, **options: Any) -> Any:
            self._local.server = ""
            answer = urlopen(*given, **options)
            self._local.server = answer.headers.get("X-ClickHouse-Server-Display-Name", "")
            return answer

        pool.urlopen = noting  # type: ignore[method-assign]

    def __repr__(self) -> str:
        return f"Client({self.settings.url!r}, user {self.settings.username!r})"

    @property
    def server_version(self) -> str:
        return str(self._driver.server_version)

    def knows_setting(self, name: str) -> bool:
        """Whether the server has this setting (older ones lack some)."""
        return name in self._driver.server_settings

    def fixed_at(self, name: str, wanted: str | int) -> str | None:
        """The value of a setting that this user may not change, if it is another one than this; else None."""
        known = self._driver.server_settings.get(name)
        return None if known is None or not known.readonly or known.value == str(wanted) else str(known.value)

    def arrow(
        self,
        sql: str,
        parameters: Mapping[str, object] | None = None,
        *,
        settings: Settings | None = None,
        keys: Keys | None = None,
        of: Stored | None = None,
        doing: str = "read",
    ) -> pa.Table:
        """Run a query; its columns in the Arrow types that ClickHouse gives, text as ``binary``."""

        def ask(more: Settings) -> pa.Table:
            with translated(self.settings.url, doing, self.settings.password):
                answer = self._driver.raw_query(
                    sql,
                    parameters=dict(parameters) if parameters else None,
                    settings=self._known({**_READ, **(settings or {}), **more, **_sized(sql)}),
                    fmt="ArrowStream",
                    external_data=keys.external() if keys is not None else None,
                )
            try:
                return from_stream(answer)
            except pa.ArrowInvalid:
                # An error after the status line replaces the rest of the stream.
                raise ClickHouseError(f"could not {doing}: the answer ends early: {_tail(answer)}") from None

        return self.replicas.read(lambda more: self._answer(lambda: ask(more)), of)

    def rows(
        self,
        sql: str,
        parameters: Mapping[str, object] | None = None,
        *,
        settings: Settings | None = None,
        of: Stored | None = None,
        doing: str = "read",
    ) -> list[dict[str, Any]]:
        """Run a query of few rows; Python values by column name."""

        def ask(more: Settings) -> list[dict[str, Any]]:
            with translated(self.settings.url, doing, self.settings.password):
                answer = self._driver.query(
                    sql,
                    parameters=dict(parameters) if parameters else None,
                    settings=self._known({**(settings or {}), **more, **_sized(sql)}),
                )
                return [dict(row) for row in answer.named_results()]

        return self.replicas.read(lambda more: self._answer(lambda: ask(more)), of)

    def command(
        self,
        sql: str,
        parameters: Mapping[str, object] | None = None,
        *,
        settings: Settings | None = None,
        keys: Keys | None = None,
        of: Stored | None = None,
        doing: str = "run a statement",
        again: bool = True,
        query_id: str = "",
    ) -> None:
        """Run a statement without a result.

        Args:
            again: it may be repeated after a failure.
            query_id: how its id begins; by default the server draws one.
        """
        own = f"{query_id}{uuid.uuid4().hex[:8]}" if query_id else ""
        named = {"query_id": own, "log_comment": own} if own else {}

        def act(more: Settings) -> None:
            with translated(self.settings.url, doing, self.settings.password):
                self._driver.command(
                    sql,
                    parameters=dict(parameters) if parameters else None,
                    settings={**self._known({**(settings or {}), **more, **_sized(sql)}), **named},
                    external_data=keys.external() if keys is not None else None,
                )

        self.replicas.act(lambda more: self._answer(lambda: act(more), again), of)

    def insert(
        self,
        table: str,
        rows: pa.Table,
        *,
        settings: Settings,
        doing: str | None = None,
        retry: Retry | None = None,
        query: tuple[Sequence[str], str] | None = None,
        query_id: str = "",
        by_content: bool = False,
    ) -> int:
        """Insert rows as one Arrow record batch; returns the rows that the server reports as written.

        Every repeat sends the same bytes with the same settings: the caller makes a repeat harmless, by a
        deduplication token or by the engine.

        Args:
            table: a quoted, qualified name.
            query: names of columns, and a SELECT over ``input(…)`` of the rows that fills them.
            query_id: how the ids of the requests begin; by default the server draws one.
            by_content: the deduplication token is extended by a digest of the bytes sent.
        """
        body = to_stream(one_batch(rows), self.settings.compression)
        if by_content:
            settings = {**settings, _TOKEN: f"{settings[_TOKEN]}/{blake2b(body, digest_size=16).hexdigest()}"}
        columns, select = query or (rows.column_names, "")
        filled = ", ".join(map(quote, columns))
        # In the statement: the HTTP library goes over a URL character by character, four times.
        target = " ".join(filter(None, (f"{table} ({filled})", self._clause(settings), select)))
        if len(body) <= _SMALL:
            statement, body = None, memoryview(f"INSERT INTO {target} FORMAT ArrowStream\n".encode() + body)
        else:
            # The body goes out uncopied, with the statement in the URL.
            statement = target

        def act() -> int:
            # Each attempt has its own: the server refuses an id whose query is still running.
            own = f"{query_id}{uuid.uuid4().hex[:8]}" if query_id else ""
            named = {"query_id": own, "log_comment": own} if own else None
            with translated(self.settings.url, doing or f"insert into {table}", self.settings.password):
                # As a view, which the driver does not send again by itself.
                sent: Any = body
                return self._driver.raw_insert(statement, None, sent, settings=named, fmt="ArrowStream").written_rows

        return self._answer(act, retry=retry)

    def _clause(self, settings: Settings) -> str:
        """The ``SETTINGS`` clause with those of the settings that this user can set on this server."""
        token = settings.get(_TOKEN)
        others = tuple((name, value) for name, value in settings.items() if name != _TOKEN)
        if others not in self._clauses:
            self._clauses[others] = _pairs(self._driver.usable(self._known(dict(others))))
        pairs = [self._clauses[others], _pairs(self._known({_TOKEN: token})) if token is not None else ""]
        return f"SETTINGS {', '.join(filter(None, pairs))}" if any(pairs) else ""

    def close(self) -> None:
        self._driver.close()

    def _known(self, settings: Settings) -> dict[str, Any]:
        """The settings that this server has; an older server behaves like that without the others."""
        return {name: value for name, value in settings.items() if self.knows_setting(name)}

    def _on_retry(self, error: ClickHouseError, wait: float) -> None:
        if error.code == TOO_MANY_PARTS:
            self.slow_downs += 1
        # The job says so once the attempts are used up.
        log.debug("%s; next attempt in %.1f s", error, wait)


def _sized(sql: str) -> Settings:
    """The settings for a statement that may be larger than servers read by default, as those of wide tables are."""
    if len(sql) <= _LONG:
        return {}
    elements = {"max_ast_elements": len(sql), "max_expanded_ast_elements": 10 * len(sql)}
    return {"max_query_size": 4 * len(sql) + 1000, **elements}


def expect_supported(url: str, version: str) -> None:
    """Raises ConfigError for a server that is older than what the tests run on."""
    if version_of(version) < OLDEST:
        raise ConfigError(
            f"{url} is ClickHouse {version}; ch_sink needs {'.'.join(map(str, OLDEST))} or later",
            hint="Upgrade the server, or let clickhouse.url name another one (docs/servers.md).",
        )


def connect(settings: ClickHouseSettings) -> Client:
    """The client of this OS process for these settings; created on the first call.

    Raises:
        ConfigError: the URL cannot be used.
        ClickHouseUnavailable: the server does not answer.
        AccessDenied: wrong user or password.
    """
    key = (os.getpid(), settings)
    with _lock:
        client = _clients.get(key)
        if client is None:
            # Clients inherited from a parent process share its sockets.
            for stale in [k for k in _clients if k[0] != key[0]]:
                del _clients[stale]
            common.set_setting("invalid_setting_action", "drop")
            client = _clients[key] = Client(settings)
        return client


def disconnect(settings: ClickHouseSettings) -> None:
    """Close and forget the client of this process, if there is one."""
    with _lock:
        client = _clients.pop((os.getpid(), settings), None)
    if client is not None:
        client.close()


def _pairs(settings: Settings) -> str:
    texts = ((name, f"{value:d}" if isinstance(value, int) else literal(value)) for name, value in settings.items())
    return ", ".join(f"{name} = {text}" for name, text in texts)


def _tail(answer: bytes) -> str:
    text = answer[-2000:].decode("utf-8", "replace")
    at = text.find("DB::Exception")
    return text[at:].strip() if at >= 0 else f"{len(answer)} bytes"
