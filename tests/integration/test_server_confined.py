"""What an embedded server without a password keeps from web pages and from other machines."""

from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode

import pytest

from ch_sink.errors import ConfigError
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
