"""Bodies, forms, locks and error codes, each against an independent peer."""

import io
from collections.abc import Iterator
from contextlib import ExitStack
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from urllib3.filepost import encode_multipart_formdata

from ch_sink.errors import ConfigError
from ch_sink.local.clickhouse.engine import Connection, DirectoryLock, QueryError, status_of
from ch_sink.local.clickhouse.messages import BodyStream, Request, read_form
from ch_sink.local.clickhouse.queries import Connections

PLAIN = b"".join(b"%d,%d\n" % (n, n * n) for n in range(20_000))


def cut(body: bytes, size: int = 1000) -> Iterator[bytes]:
    return (body[at : at + size] for at in range(0, len(body), size))


def test_chunked_and_plain_bodies() -> None:
    chunked = b"".join(b"%x;note=1\r\n%s\r\n" % (len(p), p) for p in cut(PLAIN)) + b"0\r\nTrailer: x\r\n\r\nNEXT"
    stream = io.BytesIO(chunked)
    assert b"".join(BodyStream(stream, {"Transfer-Encoding": "chunked"})) == PLAIN
    assert stream.read() == b"NEXT"
    stream = io.BytesIO(PLAIN + b"NEXT")
    assert b"".join(BodyStream(stream, {"Content-Length": str(len(PLAIN))})) == PLAIN
    assert stream.read() == b"NEXT"


@pytest.mark.parametrize("headers", [{"Transfer-Encoding": "chunked"}, {"Content-Length": "100"}])
def test_a_body_that_ends_early_is_an_error(headers: dict[str, str]) -> None:
    with pytest.raises(QueryError) as caught:
        list(BodyStream(io.BytesIO(b"50\r\n1234"), headers))
    assert caught.value.code == 3


def test_a_form_is_read_as_its_peer_writes_it_and_a_cut_off_one_is_an_error() -> None:
    tricky = b"\r\n--not the boundary\r\n" + bytes(range(256)) + b"\r\n"
    fields = {"query": "SELECT 'é'", "keys": ("keys.csv", tricky), "empty": ("e.csv", b""), "param_a": "1\r\n2"}
    body, content_type = encode_multipart_formdata(fields)
    params, files = read_form(body, content_type)
    assert params == {"query": "SELECT 'é'", "param_a": "1\r\n2"}
    assert files == {"keys": tricky, "empty": b""}
    with pytest.raises(QueryError, match="closing boundary"):
        read_form(body[:-20], content_type)


def test_a_directory_has_one_owner(tmp_path: Path) -> None:
    private = tmp_path / "data" / "ch_sink"
    private.mkdir(parents=True)
    first, second = DirectoryLock(private), DirectoryLock(private)
    first.acquire()
    first.describe("at http://127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"in use by process \d+ at http://127\.0\.0\.1:1"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()


def test_statuses_are_the_servers() -> None:
    codes = (62, 60, 81, 115, 497, 516, 159, 241, 48)
    assert [status_of(code) for code in codes] == [400, 404, 404, 404, 403, 403, 408, 500, 501]


def headers(**fields: str) -> Message:
    found = Message()
    for name, value in fields.items():
        found[name.replace("_", "-")] = value
    return found


def test_credentials_from_each_place() -> None:
    basic = headers(Authorization="Basic dTpwOmE=")
    assert Request("GET", "/", {}, basic).credentials() == ("u", "p:a")
    assert Request("GET", "/", {}, headers(X_ClickHouse_User="u", X_ClickHouse_Key="p")).credentials() == ("u", "p")
    assert Request("GET", "/", {"user": "u", "password": "p"}, headers()).credentials() == ("u", "p")
    assert Request("GET", "/", {}, headers()).credentials() == ("default", "")
    for faulty in ("Bearer x", "Basic ?"):
        with pytest.raises(QueryError):
            Request("GET", "/", {}, headers(Authorization=faulty)).credentials()


def test_connections_are_used_again_by_one_request_at_a_time_and_closed_beyond_a_few() -> None:
    opened: list[int] = []
    closed: list[int] = []

    class Raw:
        def __init__(self) -> None:
            opened.append(len(opened))
            self.number = opened[-1]

        def query(self, *_: Any, **__: Any) -> None: ...

        def close(self) -> None:
            closed.append(self.number)

    connections = Connections(SimpleNamespace(connect=lambda: Connection(Raw())))  # type: ignore[arg-type]

    def of(number: int, **more: str) -> Any:
        settings = {"max_threads": str(number), **more}
        return connections.of(Request("POST", "/", {}, Message()), settings, leaves_traces=False)

    with ExitStack() as stack:
        for number in range(20):
            stack.enter_context(of(number))
    assert closed == [19, 18, 17, 16], "those that were left first"
    with of(0, log_comment="another") as (first, _):
        assert len(opened) == 20, "another comment is not a reason for another connection"
        with of(0) as (second, _):
            assert second is not first
    connections.close()
    assert sorted(closed) == list(range(21))
