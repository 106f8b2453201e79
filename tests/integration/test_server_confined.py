"""The embedded server lets nobody out of its folder, keeps row policies, and has a command."""

from __future__ import annotations

import http.client
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode

import clickhouse_connect
import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError

from ch_sink.errors import ConfigError
from ch_sink.local import free_port
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.clickhouse.server import ClickHouseEndpoint

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedClickHouse]:
    with EmbeddedClickHouse() as found:
        assert ask(found, "CREATE DATABASE shop") == (200, "")
        assert ask(found, "CREATE TABLE shop.t (id Int64, n String) ENGINE = MergeTree ORDER BY id") == (200, "")
        yield found


def ask(server: EmbeddedClickHouse, query: str, *, method: str = "POST", **headers: str) -> tuple[int, str]:
    path = f"/?{urlencode({'query': query})}" if method == "GET" else "/"
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=60)) as connection:
        connection.request(method, path, query if method == "POST" else None, named)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:8123"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-origin"},
        {"Host": "evil.example:8123"},
        {"Host": "127.0.0.1.evil.example"},
    ],
)
def test_a_request_of_a_web_page_is_refused(server: EmbeddedClickHouse, method: str, headers: dict[str, str]) -> None:
    status, said = ask(server, "SELECT 'read'", method=method, **headers)
    assert (status, "read" in said.replace("refused", "")) == (403, False)


@pytest.mark.parametrize("headers", [{}, {"Host": "localhost"}, {"Host": "[::1]:8123"}, {"Sec_Fetch_Site": "none"}])
def test_a_client_and_an_address_that_is_typed_in_are_answered(
    server: EmbeddedClickHouse, headers: dict[str, str]
) -> None:
    assert ask(server, "SELECT 'read'", method="GET", **headers) == (200, "read\n")


@pytest.mark.parametrize(
    "query", ["SELECT 1 INTO OUTFILE '{new}'", "INSERT INTO shop.t FROM INFILE '{new}' FORMAT CSV"]
)
def test_clauses_that_name_the_client_s_files_are_refused(
    server: EmbeddedClickHouse, tmp_path: Path, query: str
) -> None:
    status, said = ask(server, query.format(new=tmp_path / "new"))
    assert status in (400, 500), said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "here.example"])
def test_an_address_that_other_machines_reach_needs_a_password(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError, match="this user's files") as refused:
        ClickHouseEndpoint(tmp_path / "data", host, 0).start()
    assert "CH_SINK_SERVER_PASSWORD" in str(refused.value.hint)
    assert not (tmp_path / "data").exists()


LIVE = "SELECT k FROM shop.t FINAL ORDER BY k"


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedClickHouse]:
    with EmbeddedClickHouse(tmp_path_factory.mktemp("data")) as endpoint:
        yield endpoint


@pytest.fixture
def client(endpoint: EmbeddedClickHouse) -> Iterator[Client]:
    client = clickhouse_connect.get_client(host=endpoint.host, port=endpoint.port)
    client.command("CREATE DATABASE IF NOT EXISTS shop")
    client.command(
        "CREATE OR REPLACE TABLE shop.t (k Int64, v UInt64, sign Int8) ENGINE = ReplacingMergeTree(v) ORDER BY k"
    )
    client.command("INSERT INTO shop.t VALUES (1, 1, 1), (2, 1, 1)")
    client.command("INSERT INTO shop.t VALUES (1, 2, -1)")  # a delete row
    yield client
    client.command("DROP ROW POLICY IF EXISTS p ON shop.t")
    client.close()


def live(client: Client, **settings: object) -> list[int]:
    return [row[0] for row in client.query(LIVE, settings=settings).result_rows]


def test_before_final_a_policy_brings_deleted_rows_back_and_after_it_not(client: Client) -> None:
    assert live(client) == [1, 2]
    client.command("CREATE ROW POLICY p ON shop.t USING sign != -1 TO ALL")
    assert live(client, apply_row_policy_after_final=1) == [2]
    assert live(client, apply_row_policy_after_final=0) == [1, 2]
    client.command("DROP ROW POLICY p ON shop.t")
    assert live(client) == [1, 2]
    assert client.query("SELECT sign FROM shop.t FINAL WHERE k = 1").first_row == (-1,)


def test_a_policy_for_a_role_holds_for_requests_in_that_role(client: Client) -> None:
    client.command("CREATE ROW POLICY p ON shop.t USING sign != -1 TO readers, `app user`")
    assert live(client) == [1, 2]
    assert live(client, role="readers") == [2]
    assert live(client, role="app user") == [2]
    assert live(client, role="writers") == [1, 2]
    client.command("DROP ROW POLICY p ON shop.t")
    client.command("CREATE ROW POLICY p ON shop.t USING sign != -1 TO ALL EXCEPT default")
    assert live(client) == [1, 2]


def test_faulty_policies_are_refused_and_change_nothing(client: Client) -> None:
    client.command("CREATE ROW POLICY p ON shop.t USING k = 2 TO ALL")
    for text, code in [
        ("CREATE ROW POLICY p ON shop.t USING 1 TO ALL", 493),
        ("CREATE ROW POLICY q ON shop.t USING (k = TO ALL", 62),
        ("DROP ROW POLICY nothing ON shop.t", 523),
        ("CREATE ROW POLICY q ON shop.`odd name` USING 1 TO ALL", 48),
    ]:
        with pytest.raises(DatabaseError) as caught:
            client.command(text)
        assert caught.value.code == code, text
    assert live(client) == [2]
    client.command("CREATE ROW POLICY IF NOT EXISTS p ON shop.t USING 1 TO ALL")
    assert live(client) == [2]


@pytest.mark.long
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_policies_and_rows_survive_a_restart(endpoint: EmbeddedClickHouse, client: Client, end: str) -> None:
    client.command("CREATE ROW POLICY p ON shop.t USING sign != -1 TO ALL")
    getattr(endpoint, end)()
    endpoint.start()
    assert live(client) == [2]


@pytest.mark.long
def test_queries_and_inserts_go_on_while_policies_change(endpoint: EmbeddedClickHouse, client: Client) -> None:
    client.command("CREATE OR REPLACE TABLE shop.log (a UInt64) ENGINE = MergeTree ORDER BY a")
    failures: list[BaseException] = []
    done = threading.Event()
    inserted = [0, 0]

    def work(who: int) -> None:
        own = clickhouse_connect.get_client(host=endpoint.host, port=endpoint.port, compress=False)
        try:
            while not done.is_set():
                own.insert("shop.log", [[n] for n in range(1000)], column_names=["a"])
                inserted[who] += 1000
                assert own.query("SELECT count() FROM numbers(1000)").first_row == (1000,)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(who,)) for who in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(4):
        client.command(f"CREATE ROW POLICY p ON shop.t USING k > {turn} TO ALL")
        client.command("DROP ROW POLICY p ON shop.t")
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert client.command("SELECT count() FROM shop.log") == sum(inserted)


@pytest.mark.long
def test_a_policy_file_of_another_version_is_named(tmp_path: Path) -> None:
    with EmbeddedClickHouse(tmp_path) as endpoint:
        policies = endpoint.path / "ch_sink" / "row_policies.json"
    policies.write_text('[{"name": 1}')
    with pytest.raises(Exception, match=r"row_policies\.json"):
        EmbeddedClickHouse(tmp_path).start()


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from ch_sink.cli import main; main()", "server", *arguments]


def ping(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/ping")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


@pytest.mark.long
def test_it_serves_refuses_a_second_owner_and_stops_cleanly(tmp_path: Path) -> None:
    port = free_port()
    first = subprocess.Popen(command("--port", str(port), "--path", str(tmp_path)), stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while not ping(port):
            assert first.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        second = subprocess.run(
            command("--port", str(free_port()), "--path", str(tmp_path)),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert second.returncode == 2
        assert f"in use by process {first.pid}" in second.stderr.replace("\n", " ")
        assert "Traceback" not in second.stderr
        first.send_signal(signal.SIGTERM)
        assert first.wait(30) == 0
        assert first.stderr is not None
        assert f"http://127.0.0.1:{port}" in first.stderr.read().replace("\n", "")
    finally:
        first.kill()
        first.communicate()
