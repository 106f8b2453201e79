"""What an embedded server without a password keeps from web pages, and what nobody reaches through it."""

from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from ch_sink.local.clickhouse.launch import EmbeddedClickHouse

pytestmark = pytest.mark.integration
SECRET = "hunter2"


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedClickHouse]:
    with EmbeddedClickHouse() as found:
        assert ask(found, "CREATE DATABASE shop") == (200, "")
        assert ask(found, "CREATE TABLE shop.t (id Int64, n String) ENGINE = MergeTree ORDER BY id") == (200, "")
        yield found


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text(f"7,{SECRET}\n")
    return tmp_path


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
    "query",
    [
        "SELECT * FROM file('{secret}', 'CSV', 'a Int64, b String')",
        "SELECT file('{secret}')",
        "SELECT `file` ('{secret}')",
        "SELECT \"\\x66ile\"('{secret}')",
        "SELECT file/**/('{secret}')",
        "INSERT INTO shop.t SELECT * FROM file('{secret}', 'CSV', 'a Int64, b String')",
        "INSERT INTO shop.t FROM INFILE '{secret}' FORMAT CSV",
        "SELECT * FROM `{secret}`",
        "SELECT * FROM default.`{folder}/se*`",
        "SELECT * FROM `\\x2f{secret}`",
        "SELECT * FROM `pyproject.toml`",
        "SELECT * FROM '{secret}'",
        "SELECT * FROM system.one, '{secret}'",
        "SELECT * FROM system.one CROSS JOIN '{secret}'",
        "SELECT * FROM `{relative}/s*`",
        "SELECT * FROM '{relative}/s*'",
        "SELECT * FROM {{t:Identifier}} SETTINGS param_t = '{secret}'",
        "DESCRIBE TABLE file('{secret}')",
        "SELECT * FROM (DESCRIBE TABLE file('{secret}'))",
        "CREATE DATABASE f ENGINE = Filesystem",
        "CREATE DATABASE f ENGINE Filesystem",
        "CREATE TABLE shop.k (a String) ENGINE = Kafka SETTINGS kafka_broker_list = '127.0.0.1:1', "
        "kafka_topic_list = 't', kafka_group_name = 'g', kafka_format = 'CSV'",
        "SELECT * FROM loop('default', '{secret}')",
        "SELECT * FROM fileCluster('one', '{secret}', 'CSV', 'a Int64, b String')",
        "DESCRIBE file('{secret}')",
        "CREATE VIEW shop.v AS SELECT file('{secret}')",
        "CREATE FUNCTION f AS x -> file(x)",
        "CREATE TABLE shop.f (a Int64, b String) ENGINE = File(CSV, '{secret}')",
        "CREATE TABLE shop.f ENGINE = File(CSV, '{secret}') AS SELECT 1 AS a",
        "CREATE DATABASE f ENGINE = Filesystem('{folder}')",
        "SELECT * FROM filesystem('{folder}')",
        "SELECT * FROM system.one SETTINGS "
        "additional_table_filters = {{'system.one': 'throwIf(1, file(\\'{secret}\\'))'}}",
        "SELECT 1 FORMAT Template SETTINGS format_template_resultset = '{secret}'",
        "SELECT * FROM icebergLocal('{folder}')",
        "CREATE DICTIONARY shop.d (a Int64, b String) PRIMARY KEY a SOURCE(FILE(PATH '{secret}' FORMAT CSV)) "
        "LAYOUT(FLAT()) LIFETIME(0)",
    ],
)
def test_no_file_outside_the_data_directory_is_read(server: EmbeddedClickHouse, outside: Path, query: str) -> None:
    places = {"secret": outside / "secret", "folder": outside, "relative": outside.relative_to("/")}
    status, said = ask(server, query.format(**places))
    assert status in (400, 403, 404) or "SETTING_CONSTRAINT_VIOLATION" in said, said
    assert SECRET not in said


@pytest.mark.parametrize("place", ["{t:Identifier}", "default.{t:Identifier}"])
def test_no_parameter_names_a_file_as_a_table(server: EmbeddedClickHouse, outside: Path, place: str) -> None:
    asked = urlencode({"query": f"SELECT * FROM {place}", "param_t": outside / "secret"})
    with pytest.raises(HTTPError, match="403"):
        urlopen(f"{server.url}/?{asked}")


def test_a_path_is_an_ordinary_string_elsewhere(server: EmbeddedClickHouse, outside: Path) -> None:
    query = f"SELECT replaceAll('{outside}', '/', '|') = '', '{outside}', '/*' FROM system.one WHERE '/' IN ('a', '/')"
    assert ask(server, query) == (200, f"0\t{outside}\t/*\n")


@pytest.mark.parametrize(
    "query",
    [
        "INSERT INTO FUNCTION file('{new}', 'CSV', 'a Int64') SELECT 1",
        "INSERT INTO FUNCTION file('{new}', 'CSV', 'a Int64') VALUES (1)",
        "SELECT 1 INTO OUTFILE '{new}'",
        "CREATE DATABASE f ENGINE = SQLite('{new}')",
        "CREATE TABLE shop.r (a Int64) ENGINE = EmbeddedRocksDB(0, '{new}', 0) PRIMARY KEY a",
        "CREATE TABLE shop.r (a Int64) ENGINE = `EmbeddedRocksDB`(0, '{new}', 0) PRIMARY KEY a",
        "CREATE TABLE shop.r (a Int64) ENGINE = MergeTree ORDER BY a "
        "SETTINGS disk = disk(type = 'local', path = '{new}/')",
        "BACKUP TABLE shop.t TO File('{new}')",
        "BACKUP TABLE shop.t TO Disk('default', '{new}')",
        "CREATE DICTIONARY shop.d (a Int64, b String) PRIMARY KEY a "
        "SOURCE(EXECUTABLE(COMMAND 'touch {new}' FORMAT CSV)) LAYOUT(FLAT()) LIFETIME(0)",
    ],
)
def test_no_file_outside_the_data_directory_is_written_and_no_program_runs(
    server: EmbeddedClickHouse, outside: Path, query: str
) -> None:
    ask(server, query.format(new=outside / "new"))
    ask(server, "SELECT * FROM shop.d")
    assert sorted(path.name for path in outside.rglob("*")) == ["secret"]


@pytest.mark.parametrize(
    "source",
    [
        "url('http://127.0.0.1:1/', 'CSV', 'a String')",
        "s3('http://127.0.0.1:1/b/k', 'CSV', 'a String')",
        "mysql('127.0.0.1:1', 'd', 't', 'u', 'p')",
        "postgresql('127.0.0.1:1', 'd', 't', 'u', 'p')",
        "mongodb('127.0.0.1:1', 'd', 't', 'u', 'p', 'a String')",
        "remote('127.0.0.1:1', system.one)",
        "sqlite('{secret}', 't')",
        "executable('x.sh', 'CSV', 'a String')",
    ],
)
def test_no_other_server_and_no_program_is_asked(server: EmbeddedClickHouse, outside: Path, source: str) -> None:
    status, said = ask(server, f"SELECT * FROM {source.format(secret=outside / 'secret')}")
    assert status != 200
    assert "leads out of the data directory" in said


def test_what_looks_like_the_function_is_stored_as_it_is(server: EmbeddedClickHouse) -> None:
    rows = "INSERT INTO shop.t VALUES (1, 'see file (1)'), (2, 'C:\\\\file(2)')"
    assert ask(server, rows) == (200, "")
    assert ask(server, "SELECT n FROM shop.t ORDER BY id FORMAT TSVRaw") == (200, "see file (1)\nC:\\file(2)\n")


def test_tables_and_columns_may_have_such_names(server: EmbeddedClickHouse) -> None:
    assert ask(server, "CREATE TABLE shop.file (url String, s3 Int64) ENGINE = MergeTree ORDER BY s3") == (200, "")
    assert ask(server, "INSERT INTO shop.file (url, s3) SELECT 'a', 1") == (200, "")
    assert ask(server, "SELECT url, (s3) FROM shop.file") == (200, "a\t1\n")
