"""The endpoint's HTTP, byte for byte, with nothing but http.client and sockets."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from itertools import count
from urllib.parse import urlencode

import pytest

from ch_sink.local.clickhouse.launch import EmbeddedClickHouse

pytestmark = pytest.mark.integration
_numbers = count(1)


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()
        self.code = int(self.headers.get("x-clickhouse-exception-code", 0))

    @property
    def summary(self) -> dict[str, int]:
        return {name: int(value) for name, value in json.loads(self.headers["x-clickhouse-summary"]).items()}


def ask(
    endpoint: EmbeddedClickHouse,
    query: str | None = None,
    body: bytes | Iterator[bytes] | None = None,
    *,
    method: str = "POST",
    path: str = "/",
    headers: dict[str, str] | None = None,
    **params: object,
) -> Answer:
    if query is not None:
        params = {"query": query, **params}
    connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=60)
    try:
        chunked = body is not None and not isinstance(body, bytes)
        target = f"{path}?{urlencode(params)}" if params else path
        connection.request(method, target, body=body, headers=headers or {}, encode_chunked=chunked)
        return Answer(connection.getresponse())
    finally:
        connection.close()


@pytest.fixture
def table(clickhouse: EmbeddedClickHouse) -> Iterator[str]:
    name = f"http_{next(_numbers)}"
    assert ask(clickhouse, f"CREATE TABLE {name} (a UInt64, b String) ENGINE = MergeTree ORDER BY a").status == 200
    yield name
    ask(clickhouse, f"DROP TABLE {name} SYNC")


@pytest.mark.parametrize("path", ["/ping", "/replicas_status", "/"])
def test_health(clickhouse: EmbeddedClickHouse, path: str) -> None:
    answer = ask(clickhouse, method="GET", path=path)
    assert (answer.status, answer.body) == (200, b"Ok.\n")


def test_an_unknown_path_is_404(clickhouse: EmbeddedClickHouse) -> None:
    assert ask(clickhouse, method="GET", path="/nowhere").status == 404


def test_query_in_the_url_the_body_or_cut_between_both(clickhouse: EmbeddedClickHouse) -> None:
    assert ask(clickhouse, "SELECT 1", method="GET").body == b"1\n"
    assert ask(clickhouse, body=b"SELECT 1").body == b"1\n"
    assert ask(clickhouse, "SELECT 1,", body=b"2").body == b"1\t2\n"
    assert ask(clickhouse, body=iter([b"SEL", b"ECT ", b"1"])).body == b"1\n"


def test_headers_of_an_answer(clickhouse: EmbeddedClickHouse) -> None:
    answer = ask(clickhouse, "SELECT 1 AS a", default_format="JSONEachRow", query_id="mine")
    assert answer.body == b'{"a":1}\n'
    assert answer.headers["x-clickhouse-query-id"] == "mine"
    assert answer.headers["x-clickhouse-format"] == "JSONEachRow"
    assert answer.headers["content-type"].startswith("application/json")
    assert answer.headers["x-clickhouse-server-display-name"]
    assert answer.headers["x-clickhouse-timezone"]
    assert re.fullmatch(r"[0-9a-f-]{36}", ask(clickhouse, "SELECT 1").headers["x-clickhouse-query-id"])


def test_database_parameter(clickhouse: EmbeddedClickHouse) -> None:
    assert ask(clickhouse, "SELECT currentDatabase()", database="system").body == b"system\n"
    assert ask(clickhouse, "SELECT 1", database="nowhere").status == 404


def test_parameters(clickhouse: EmbeddedClickHouse) -> None:
    answer = ask(clickhouse, "SELECT {a:UInt8} + 1, {b:String}", param_a=3, param_b="x\\ty")
    assert answer.body == b"4\tx\\ty\n"
    assert ask(clickhouse, "SELECT {a:UInt8}").code == 456


def test_rows_in_the_body_after_the_query_or_alone(clickhouse: EmbeddedClickHouse, table: str) -> None:
    assert ask(clickhouse, body=f"INSERT INTO {table} FORMAT CSV\n1,x\n2,y\n".encode()).summary["written_rows"] == 2
    assert ask(clickhouse, f"INSERT INTO {table} FORMAT CSV", body=b"3,z\n").summary["written_rows"] == 1
    assert ask(clickhouse, f"INSERT INTO {table} VALUES", body=b"(4, 'v')").summary["written_rows"] == 1
    assert ask(clickhouse, f"INSERT INTO {table} VALUES (5, 'w'), (6, lower('U'))").summary["written_rows"] == 2
    assert ask(clickhouse, body=f"INSERT INTO {table} FORMAT TSV 7\tt".encode()).summary["written_rows"] == 1
    assert ask(clickhouse, f"INSERT INTO {table}", body=b"7\tt\n").code == 62
    text = f"INSERT INTO {table} SELECT x + 1, upper(y) FROM input('x UInt64, y String') FORMAT CSV"
    assert ask(clickhouse, text, body=b"7,s\n").summary["written_rows"] == 1
    text = f"INSERT INTO {table} (a) SETTINGS async_insert = 0 FORMAT CSV"
    assert ask(clickhouse, text, body=b"9\n").summary["written_rows"] == 1
    found = ask(clickhouse, f"SELECT * FROM {table} ORDER BY a FORMAT CSV").body
    assert found == b'1,"x"\n2,"y"\n3,"z"\n4,"v"\n5,"w"\n6,"u"\n7,"t"\n8,"S"\n9,""\n'


def test_an_insert_without_rows_writes_none(clickhouse: EmbeddedClickHouse, table: str) -> None:
    for name in ("CSV", "Native", "JSONEachRow", "RowBinary"):
        answer = ask(clickhouse, f"INSERT INTO {table} FORMAT {name}")
        assert (answer.status, answer.body) == (200, b""), name
    assert ask(clickhouse, f"SELECT count() FROM {table}").body == b"0\n"


def test_a_settings_clause_may_stand_anywhere(clickhouse: EmbeddedClickHouse) -> None:
    for text in (
        "SELECT getSetting('max_threads') AS a SETTINGS max_threads = 3",
        "SELECT getSetting('max_threads') AS a SETTINGS max_threads = 3 FORMAT CSV",
        "SELECT getSetting('max_threads') AS a FORMAT CSV SETTINGS max_threads = 3",
        "SELECT getSetting('max_threads') AS a FORMAT CSV SETTINGS max_threads = 3, max_block_size = 10;",
    ):
        assert ask(clickhouse, text).body == b"3\n", text


@pytest.mark.long
def test_large_bodies_are_taken_in_chunks(clickhouse: EmbeddedClickHouse, table: str) -> None:
    def rows() -> Iterator[bytes]:
        for start in range(0, 2_000_000, 10_000):
            yield b"".join(b"%d\tsome text %d\n" % (n, n) for n in range(start, start + 10_000))

    answer = ask(clickhouse, f"INSERT INTO {table} FORMAT TSV", body=rows())
    assert answer.summary["written_rows"] == 2_000_000


def test_statuses_and_codes_of_failures(clickhouse: EmbeddedClickHouse) -> None:
    for text, status, code in [
        ("SELEC 1", 400, 62),
        ("SELEC", 400, 62),
        ("1", 400, 62),
        (" -- nothing", 400, 62),
        ("SELECT * FROM nowhere", 404, 60),
        ("SELECT no_such_function()", 404, 46),
        ("SELECT 1 SETTINGS no_such_setting = 1", 404, 115),
        ("SELECT throwIf(1)", 500, 395),
        ("SELECT toDate('x')", 400, 38),
        ("SELECT sleep(2) SETTINGS max_execution_time = 1", 408, 159),
        ("CREATE USER u", 500, 514),
        ("SELECT 1 INTO OUTFILE '/tmp/x'", 500, 358),
        ("INSERT INTO FUNCTION null('a Int8') FROM INFILE '/etc/passwd' FORMAT CSV", 400, 36),
        ("SELECT 1; SELECT 2", 400, 62),
    ]:
        answer = ask(clickhouse, body=text.encode())
        assert (answer.status, answer.code) == (status, code), text
        assert re.match(rb"Code: \d+\. DB::Exception: .*\(version [\d.]+\)\n$", answer.body, re.DOTALL), answer.body


def test_get_reads_only(clickhouse: EmbeddedClickHouse) -> None:
    answer = ask(clickhouse, "CREATE TABLE x (a Int8) ENGINE = Null", method="GET")
    assert (answer.status, answer.code) == (500, 164)
    assert ask(clickhouse, "SHOW DATABASES", method="GET").status == 200


def test_a_late_failure_is_marked_in_the_body(clickhouse: EmbeddedClickHouse) -> None:
    text = "SELECT throwIf(number = 3000000) FROM numbers(4000000) SETTINGS max_block_size = 1000, max_threads = 1"
    answer = ask(clickhouse, text)
    tag = answer.headers["x-clickhouse-exception-tag"]
    assert answer.status == 200
    tail = answer.body[-2000:].decode()
    found = re.search(rf"__exception__\r\n{tag}\r\n(Code: 395.*\n)(\d+) {tag}\r\n__exception__\r\n$", tail, re.DOTALL)
    assert found is not None
    assert len(found.group(1)) == int(found.group(2))
    waited = ask(clickhouse, text, wait_end_of_query=1)
    assert (waited.status, waited.code) == (500, 395)


def test_one_connection_serves_many_requests(clickhouse: EmbeddedClickHouse, table: str) -> None:
    connection = http.client.HTTPConnection(clickhouse.host, clickhouse.port)
    sockets = set()
    for body, status in [
        (b"SELECT 1", 200),
        (b"SELEC", 400),
        (f"INSERT INTO {table} FORMAT CSV\n".encode() + b"x" * 5_000_000, 400),
        (b"SELECT * FROM numbers(1000000)", 200),
        (b"SELECT 2", 200),
    ]:
        connection.request("POST", "/", body=body)
        response = connection.getresponse()
        answered = response.read()
        sockets.add(connection.sock)
        assert response.status == status
    assert answered == b"2\n"
    assert len(sockets) == 1
    connection.close()


def test_a_client_that_waits_for_100_continue(clickhouse: EmbeddedClickHouse) -> None:
    with socket.create_connection((clickhouse.host, clickhouse.port), timeout=10) as raw:
        raw.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8\r\nExpect: 100-continue\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 100 ")
        raw.sendall(b"SELECT 7")
        assert b"7\n" in raw.recv(4096)


def test_a_body_cut_off_by_its_client_inserts_nothing(clickhouse: EmbeddedClickHouse, table: str) -> None:
    with socket.create_connection((clickhouse.host, clickhouse.port), timeout=10) as raw:
        target = "/?" + urlencode({"query": f"INSERT INTO {table} FORMAT CSV"})
        raw.sendall(
            f"POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n".encode() + b"1,x\n2,y\n"
        )
    time.sleep(0.5)
    assert ask(clickhouse, f"SELECT count() FROM {table}").body == b"0\n"


def test_a_client_that_leaves_stops_its_query(clickhouse: EmbeddedClickHouse) -> None:
    with socket.create_connection((clickhouse.host, clickhouse.port), timeout=10) as raw:
        query = urlencode({"query": "SELECT number AS left_behind FROM numbers(1000000000000)"})
        raw.sendall(f"GET /?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert raw.recv(1000)
    deadline = time.monotonic() + 20
    running = "SELECT count() FROM system.processes WHERE query LIKE '%left_behind%' AND query NOT LIKE '%processes%'"
    while ask(clickhouse, running).body != b"0\n":
        assert time.monotonic() < deadline, "the query runs on"
        time.sleep(0.2)


@pytest.mark.long
def test_long_queries_and_long_urls(clickhouse: EmbeddedClickHouse) -> None:
    numbers = ",".join(map(str, range(100_000)))
    text = f"SELECT count() FROM numbers(200000) WHERE number IN ({numbers})".encode()
    too_long = ask(clickhouse, body=text)
    assert (too_long.status, too_long.code) == (400, 62)
    assert b"max_query_size" in too_long.body
    assert ask(clickhouse, body=text, max_query_size=10_000_000).body == b"100000\n"
    assert ask(clickhouse, "SELECT length({s:String})", param_s="x" * 900_000).body == b"900000\n"
    with socket.create_connection((clickhouse.host, clickhouse.port), timeout=10) as raw:
        raw.sendall(b"GET /?query=" + b"x" * 1_100_000)
        assert raw.recv(100).startswith(b"HTTP/1.1 414 ")


@pytest.mark.long
def test_many_clients_at_once(clickhouse: EmbeddedClickHouse, table: str) -> None:
    failures: list[object] = []

    def work(client: int) -> None:
        for turn in range(10):
            first = (client * 10 + turn) * 1000
            rows = b"".join(b"%d,x\n" % n for n in range(first, first + 1000))
            done = ask(clickhouse, f"INSERT INTO {table} FORMAT CSV", body=rows, max_threads=client + 1)
            read = ask(clickhouse, "SELECT getSetting('max_threads'), sum(number) FROM numbers(100000)",
                       max_threads=client + 1)  # fmt: skip
            if done.status != 200 or read.body != b"%d\t4999950000\n" % (client + 1):
                failures.append((done.body, read.body))

    threads = [threading.Thread(target=work, args=(client,)) for client in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert ask(clickhouse, f"SELECT count(), uniqExact(a) FROM {table}").body == b"80000\t80000\n"


def test_a_request_leaves_nothing_for_the_next_one(clickhouse: EmbeddedClickHouse, table: str) -> None:
    """Requests share connections; settings, database, comment and parameters are each one's own."""
    plain = "SELECT getSetting('max_threads'), getSetting('max_block_size'), currentDatabase()"
    usual = ask(clickhouse, plain).body
    own = "SELECT 1 SETTINGS max_threads = 7, max_block_size = 77"
    for _ in range(3):
        assert ask(clickhouse, plain, max_threads=5, max_block_size=55, database="system").body == b"5\t55\tsystem\n"
        assert ask(clickhouse, plain, max_threads=6).body.startswith(b"6\t")
        assert ask(clickhouse, plain).body == usual
        assert ask(clickhouse, own).body == b"1\n"
        assert ask(clickhouse, f"INSERT INTO {table} SETTINGS max_block_size = 9 FORMAT TSV", b"1\ta\n").status == 200
        assert ask(clickhouse, "SELECT throwIf(1) SETTINGS max_threads = 8").code == 395
        assert ask(clickhouse, plain).body == usual
        assert ask(clickhouse, "SELECT {a:Int8}", param_a=4).body == b"4\n"
        assert ask(clickhouse, "SELECT {a:Int8}").code == 456


LEAVE_NOTHING = (
    "CREATE TABLE {t}_x ENGINE = MergeTree ORDER BY a AS SELECT 1 AS a SETTINGS max_block_size = 77",
    "CREATE OR REPLACE VIEW {t}_v AS SELECT * FROM {t} SETTINGS max_block_size = 77",
    "ALTER TABLE {t} ADD COLUMN c Int64 SETTINGS mutations_sync = 2",
    "ALTER TABLE {t} UPDATE b = 'x' WHERE a = 1 SETTINGS mutations_sync = 2",
    "DELETE FROM {t} WHERE a = 1 SETTINGS max_threads = 7",
    "OPTIMIZE TABLE {t} FINAL SETTINGS max_threads = 7",
    "SYSTEM STOP MERGES {t}",
    "KILL QUERY WHERE query_id = 'none' ASYNC",
    "TRUNCATE TABLE {t} SETTINGS max_threads = 7",
    "EXCHANGE TABLES {t} AND {t}_x",
    "RENAME TABLE {t}_x TO {t}_y",
    "DROP VIEW {t}_v",
    "DROP TABLE {t}_y SETTINGS max_threads = 7",
)


def test_statements_leave_their_connection_as_it_was(clickhouse: EmbeddedClickHouse, table: str) -> None:
    look = "SELECT groupArray((name, value)), currentDatabase() FROM system.settings WHERE changed"
    mine = {"max_threads": 3, "log_comment": table}
    before = ask(clickhouse, look, **mine).body
    for statement in LEAVE_NOTHING:
        done = ask(clickhouse, statement.replace("{t}", table), **mine)
        assert (statement, done.status) == (statement, 200), done.body
        assert (statement, ask(clickhouse, look, **mine).body) == (statement, before)


def test_a_comment_is_that_of_its_own_request(clickhouse: EmbeddedClickHouse) -> None:
    query = "SELECT getSetting('log_comment')"
    for comment in ("first", "", "second", ""):
        found = ask(clickhouse, query, log_comment=comment).body if comment else ask(clickhouse, query).body
        words = found.decode().split()
        assert words[:-1] == ([comment] if comment else [])
        assert words[-1].startswith("http-")
