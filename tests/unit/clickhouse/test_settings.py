"""Settings of connections to ClickHouse, and failed requests."""

import http.server
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ch_sink.clickhouse import (
    ClickHouseSettings,
    ClickHouseTableAdmin,
    Client,
    Retry,
    connect,
    detect,
    disconnect,
    server_facts,
)
from ch_sink.clickhouse.settings import ACCESS_CODES, RETRYABLE_CODES, TOO_MANY_PARTS
from ch_sink.errors import AccessDenied, ClickHouseError, ClickHouseUnavailable
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.model.policy import policy_of
from ch_sink.table.checks import check_table
from tests.support.endpoint import settings_for

pytestmark = pytest.mark.integration

FIXED = {"insert_deduplication_token": "", "async_insert": "1", "transform_null_in": "0", "final": "1"}
RIGHT = {"async_insert": "0", "insert_deduplicate": "1", "max_threads": "8", "final": "0"}


@pytest.fixture
def bound(clickhouse: EmbeddedClickHouse) -> Iterator[Client]:
    """A client of its own, whose user's profile the tests change as the server would report it."""
    one = Client(settings_for(clickhouse.url))
    yield one
    one.close()


def fix(client: Client, name: str, value: str) -> None:
    known: dict[str, Any] = client._driver.server_settings
    known[name] = known[name].__class__(name=name, value=value, readonly=1)


@pytest.fixture
def admin(bound: Client, database: str) -> ClickHouseTableAdmin:
    bound.command(f"CREATE TABLE {database}.t (id UInt64, _version UInt128) ENGINE = MergeTree ORDER BY id")
    return ClickHouseTableAdmin(bound, database, "t", policy_of())


@pytest.mark.parametrize(("name", "value"), FIXED.items())
def test_a_stream_of_such_a_user_does_not_start(
    admin: ClickHouseTableAdmin, bound: Client, name: str, value: str
) -> None:
    admin.detect()
    fix(bound, name, value)
    with pytest.raises(AccessDenied, match=f"may not change the ClickHouse setting {name}") as caught:
        admin.detect()
    assert name in (caught.value.hint or "")
    table = detect(bound, admin.database, "t", policy_of())
    found = check_table(table, ("id",), policy_of().changes, server=server_facts(bound, table))
    assert [(f.level, name in f.detail) for f in found if f.title == "settings"] == [("fail", True)]


@pytest.mark.parametrize(("name", "value"), RIGHT.items())
def test_a_setting_that_is_fixed_at_the_right_value_or_that_nothing_depends_on_is_no_obstacle(
    admin: ClickHouseTableAdmin, bound: Client, name: str, value: str
) -> None:
    fix(bound, name, value)
    admin.detect()


SECRET = "s3cret-Passw0rd"


@pytest.fixture(scope="module")
def guarded() -> Iterator[EmbeddedClickHouse]:
    with EmbeddedClickHouse(user="sink", password=SECRET) as endpoint:
        yield endpoint


def no_secret(error: ClickHouseError) -> None:
    shown = [str(error), repr(error), error.hint or "", repr(error.__dict__), repr(error.__cause__)]
    assert not [text for text in shown if SECRET in text]


def test_the_right_password_is_let_in(guarded: EmbeddedClickHouse) -> None:
    one = Client(settings_for(guarded.url, username="sink", password=SECRET))
    assert one.rows("SELECT 1 AS n") == [{"n": 1}]
    assert SECRET not in repr(one) + repr(one.settings)
    one.close()


@pytest.mark.parametrize(("user", "password"), [("sink", "wrong" + SECRET), ("nobody", SECRET), ("sink", "")])
def test_a_wrong_user_or_password_is_refused_access(guarded: EmbeddedClickHouse, user: str, password: str) -> None:
    with pytest.raises(AccessDenied, match="refuses access") as caught:
        Client(settings_for(guarded.url, username=user, password=password))
    assert caught.value.code in ACCESS_CODES
    assert "CH_SINK__CLICKHOUSE__PASSWORD" in (caught.value.hint or "")
    no_secret(caught.value)


def test_a_secret_in_a_statement_is_masked(guarded: EmbeddedClickHouse) -> None:
    one = Client(settings_for(guarded.url, username="sink", password=SECRET))
    with pytest.raises(ClickHouseError) as caught:
        one.rows(f"SELECT no_such_function('{SECRET}')")
    assert "***" in str(caught.value)
    no_secret(caught.value)
    one.close()


_MANY = "SELECT id FROM {0} WHERE id IN (SELECT id + 1 FROM {0})"


@pytest.mark.parametrize(
    ("sql", "settings", "step"),
    [
        ("INSERT INTO {0} VALUES (0)", {}, "Drop the constraint"),
        ("INSERT INTO {0} (gone) VALUES (0)", {}, "name it in columns.exclude and resume"),
        ("SELECT gone FROM {0}", {}, "name it in columns.exclude and resume"),
        (_MANY, {"max_rows_to_read": 1}, "Raise the limit"),
        (_MANY, {"max_rows_in_set": 1}, "Raise the limit"),
    ],
)
def test_what_the_table_or_a_profile_forbids_has_a_next_step(
    client: Client, database: str, sql: str, settings: dict[str, int], step: str
) -> None:
    client.command(f"CREATE TABLE {database}.c (id Int64, CONSTRAINT c CHECK id > 0) ENGINE = MergeTree ORDER BY id")
    client.command(f"INSERT INTO {database}.c SELECT number + 1 FROM numbers(5)")
    with pytest.raises(ClickHouseError) as caught:
        client.command(sql.format(f"{database}.c"), settings=settings)
    assert step in (caught.value.hint or "")


def test_nobody_there(clickhouse: EmbeddedClickHouse) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(ClickHouseUnavailable, match=f"ClickHouse at http://127.0.0.1:{port} does not answer") as caught:
        Client(settings_for(f"http://127.0.0.1:{port}", password=SECRET))
    assert "no connection" in str(caught.value)
    assert caught.value.hint
    no_secret(caught.value)


def test_a_name_that_does_not_resolve() -> None:
    with pytest.raises(ClickHouseUnavailable, match="does not answer"):
        Client(settings_for("http://no-such-host.invalid:8123"))


def test_a_server_that_never_answers() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(ClickHouseUnavailable, match="no answer within the time limit"),
    ):
        Client(settings_for(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=1.0, password=SECRET))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (429, None, ClickHouseUnavailable),
        (502, None, ClickHouseUnavailable),
        (503, None, ClickHouseUnavailable),
        (504, None, ClickHouseUnavailable),
        (500, 242, ClickHouseUnavailable),
        (500, 999, ClickHouseUnavailable),
        (500, 164, AccessDenied),
        (500, 16, ClickHouseError),
        (404, None, ClickHouseError),
    ],
)
def test_what_waiting_may_mend_is_decided_by_status_and_code(
    status: int, code: int | None, kind: type[ClickHouseError]
) -> None:
    class Away(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            if code is not None:
                self.send_header("X-ClickHouse-Exception-Code", str(code))
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Away) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        with pytest.raises(ClickHouseError) as caught:
            Client(settings_for(f"http://127.0.0.1:{other.server_address[1]}"))
        other.shutdown()
    assert type(caught.value) is kind
    assert caught.value.temporary == (kind is ClickHouseUnavailable)
    assert caught.value.code == (code or 0)


@pytest.mark.parametrize(
    ("sql", "code"),
    [("SELECT * FROM nowhere", 60), ("SELECT * FROM nodb.t", 81), ("SELEC 1", 62), ("SELECT throwIf(1, 'boom')", 395)],
)
def test_the_servers_code_and_text_are_kept(client: Client, sql: str, code: int) -> None:
    with pytest.raises(ClickHouseError) as caught:
        client.rows(sql)
    assert type(caught.value) is ClickHouseError
    assert caught.value.code == code
    assert "for url" not in str(caught.value)


def test_arrow_reads_fail_alike(client: Client) -> None:
    with pytest.raises(ClickHouseError) as caught:
        client.arrow("SELECT throwIf(number = 5) FROM numbers(10)")
    assert caught.value.code == 395


def test_errors_travel_between_processes(client: Client) -> None:
    with pytest.raises(ClickHouseError) as caught:
        client.rows("SELECT * FROM nowhere")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), copy.code, copy.hint, str(copy)) == (ClickHouseError, 60, caught.value.hint, str(caught.value))


def test_a_retryable_code_is_unavailable_and_retried(clickhouse: EmbeddedClickHouse) -> None:
    waits: list[float] = []
    one = Client(settings_for(clickhouse.url, retry=Retry(3, 0.5, 9.0, sleep=waits.append)))
    with pytest.raises(ClickHouseUnavailable) as caught:
        one.rows("SELECT sleepEachRow(1) FROM numbers(3)", settings={"max_execution_time": 1, "max_block_size": 1})
    assert caught.value.code == 159
    assert len(waits) == 2
    one.close()


def test_waits_grow_up_to_a_ceiling_and_are_longer_for_too_many_parts() -> None:
    retry = Retry(first_wait=1.0, longest_wait=40.0, slow_factor=10.0)
    for attempt, ceiling in [(1, 1.0), (2, 2.0), (5, 16.0), (9, 40.0)]:
        drawn = [retry.wait(attempt, 241) for _ in range(200)]
        assert 0 < min(drawn) <= max(drawn) <= ceiling
        assert max(drawn) > ceiling * 0.8
    slow = [retry.wait(1, TOO_MANY_PARTS) for _ in range(200)]
    assert 5.0 <= min(slow) <= max(slow) <= 10.0


def test_a_server_that_answers_too_late_is_not_asked_again_for_long(clickhouse: EmbeddedClickHouse) -> None:
    """A request that was waited for in full is left to the job, so that nobody waits for it five times."""
    tries: list[float] = []

    def ask() -> None:
        tries.append(time.monotonic())
        time.sleep(0.2)
        raise ClickHouseUnavailable("no answer within the time limit")

    with pytest.raises(ClickHouseUnavailable):
        Retry(50, 0.01, 0.01, patience=0.5).run(ask)
    assert 2 <= len(tries) <= 4


def test_no_code_is_both_retryable_and_about_access() -> None:
    assert not RETRYABLE_CODES & ACCESS_CODES
    named = {3, 107, 159, 202, 203, 209, 210, 241, 242, 252, 285, 319, 425, 999}
    assert named <= RETRYABLE_CODES


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("http://h", ("http", "h", 8123, "")),
        ("https://h", ("https", "h", 8443, "")),
        ("https://h:1/ch/", ("https", "h", 1, "/ch/")),
        ("http://[::1]:8124", ("http", "::1", 8124, "")),
    ],
)
def test_url_parts(url: str, parts: tuple[str, str, int, str]) -> None:
    at = ClickHouseSettings(url=url).endpoint
    assert (at.interface, at.host, at.port, at.path) == parts


def test_clients_are_kept_per_settings(clickhouse: EmbeddedClickHouse) -> None:
    settings = settings_for(clickhouse.url, timeout=61.0)
    one = connect(settings)
    assert connect(settings_for(clickhouse.url, timeout=61.0)) is one
    assert connect(settings_for(clickhouse.url, timeout=62.0)) is not one
    disconnect(settings)
    assert connect(settings) is not one
    disconnect(settings)
    disconnect(settings_for(clickhouse.url, timeout=62.0))


def test_a_forked_process_gets_a_client_of_its_own(clickhouse: EmbeddedClickHouse) -> None:
    import os

    settings = settings_for(clickhouse.url, timeout=63.0)
    here = connect(settings)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            there = connect(settings)
            answer = b"same" if there is here else b"%d" % there.rows("SELECT 7 AS n")[0]["n"]
            os.write(write, answer)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 10) == b"7"
    assert here.rows("SELECT 8 AS n") == [{"n": 8}]
    disconnect(settings)


def test_a_client_serves_several_threads(client: Client) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda n: client.rows(f"SELECT {n} AS n")[0]["n"], range(60)))
    assert answers == list(range(60))


@pytest.mark.parametrize(
    ("more", "value", "step"),
    [
        ("m UInt64 MATERIALIZED length(n)", "NULL", "ifNull"),
        ("CONSTRAINT few CHECK n != 'x'", "'x'", "DROP CONSTRAINT"),
    ],
)
def test_a_row_that_the_table_itself_refuses_names_the_next_step(
    client: Client, database: str, more: str, value: str, step: str
) -> None:
    """A stream stops there, and `init` may have made the column Nullable from which another is computed."""
    client.command(f"CREATE TABLE {database}.t (n Nullable(String), {more}) ENGINE = MergeTree ORDER BY ()")
    with pytest.raises(ClickHouseError) as caught:
        client.command(f"INSERT INTO {database}.t (n) VALUES ({value})")
    assert step in (caught.value.hint or "")
