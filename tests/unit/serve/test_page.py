"""The page over HTTP. How it looks and works in a browser: tests/real/test_page.py."""

import json
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from http.client import HTTPResponse
from typing import Any

import pytest

from ch_sink.errors import ChSinkError, ConfigError, StreamFailed
from ch_sink.serve.listener import Address
from ch_sink.serve.page import PageServer


class Job:
    """A job of two streams, one of them with a dead letter."""

    def __init__(self) -> None:
        self.retried: list[str] = []
        self.refuse = False

    def streams(self) -> Sequence[Mapping[str, Any]]:
        return [{"stream": "a/b", "state": "running"}, {"stream": "<b>", "state": "stopped"}]

    def dead_letters(self, stream: str, *, whole: bool) -> Sequence[Mapping[str, Any]]:
        if stream not in ("a/b", "<b>"):
            raise LookupError(f"no stream {stream!r}")
        letter = {"partition": 0, "offset": 7, "kind": "decode", "reason": "no number"}
        return [letter | {"value": "{}"}] if whole else [letter]

    def explain(self, stream: str, key: Mapping[str, Any]) -> Mapping[str, Any]:
        if "x" in key:
            raise StreamFailed("the table has no key column 'x'")
        return {"key": key, "events": [], "stored": []}

    def retry(self, stream: str) -> Mapping[str, Any]:
        if self.refuse:
            raise ChSinkError("the broker is away", hint="Try again.")
        self.retried.append(stream)
        return {"applied": 1}


@pytest.fixture
def job() -> Job:
    return Job()


@pytest.fixture
def server(job: Job) -> Iterator[PageServer]:
    found = PageServer(Address("127.0.0.1", 0), job, "sesame")
    yield found
    found.close()


def ask(
    server: PageServer, path: str, *, method: str = "GET", token: str | None = None, body: str = ""
) -> tuple[int, Any]:
    headers = {"authorization": f"Bearer {token}"} if token is not None else {}
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", method=method, headers=headers)
    request.data = body.encode() if method == "POST" else None
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_the_page_loads_nothing_from_elsewhere(server: PageServer) -> None:
    text, policy = load(server, "/")
    assert "<title>ch_sink</title>" in text
    assert policy.startswith("default-src 'none'; style-src 'self'; script-src 'self'")
    loaded = re.findall(r"(?:src|href)=\"([^\"#][^\"]*)\"", text)
    assert loaded == ["data:,", "uplot.css", "page.css", "uplot.js", "page.js"]
    for name in loaded[1:]:
        found, _ = load(server, f"/{name}")
        assert not re.search(r"url\(|@import|import\(|https?://(?!github.com/leeoniya|www.w3.org/2000/svg)", found), (
            name
        )


def load(server: PageServer, path: str) -> tuple[str, str]:
    """A file of the page, and its policy."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}", timeout=10) as answer:
        return answer.read().decode(), answer.headers["content-security-policy"]


def test_streams_are_in_the_form_of_status(server: PageServer) -> None:
    status, body = ask(server, "/api/streams")
    assert status == 200
    assert [s["stream"] for s in body["streams"]] == ["a/b", "<b>"]


def test_dead_letters_of_a_stream_whose_name_has_a_slash(server: PageServer) -> None:
    assert ask(server, "/api/dead-letters/a%2Fb")[1]["dead_letters"][0]["offset"] == 7


@pytest.mark.parametrize("token", [None, "", "wrong", "sesam"])
def test_a_retry_without_the_token_is_refused_and_does_nothing(server: PageServer, job: Job, token: str | None) -> None:
    status, body = ask(server, "/api/dead-letters/a%2Fb/retry", method="POST", token=token)
    assert (status, body["error"], job.retried) == (403, "the token is wrong", [])


def test_a_retry_with_the_token_runs(server: PageServer, job: Job) -> None:
    assert ask(server, "/api/dead-letters/a%2Fb/retry", method="POST", token="sesame") == (200, {"applied": 1})
    assert job.retried == ["a/b"]


def test_a_retry_takes_no_get(server: PageServer, job: Job) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}/api/dead-letters/a/retry", headers={"authorization": "Bearer sesame"}
    )
    with pytest.raises(urllib.error.HTTPError, match=r"HTTP Error (404|405)"):
        urllib.request.urlopen(request, timeout=10)
    assert job.retried == []


def test_an_error_says_what_is_wrong_and_what_to_do(server: PageServer, job: Job) -> None:
    job.refuse = True
    status, body = ask(server, "/api/dead-letters/a%2Fb/retry", method="POST", token="sesame")
    assert (status, body) == (409, {"error": "the broker is away", "next": "Try again."})
    assert ask(server, "/api/dead-letters/none")[0] == 404


def test_a_token_is_drawn_where_none_is_given(job: Job) -> None:
    servers = [PageServer(Address("127.0.0.1", 0), job) for _ in range(2)]
    tokens = {server.token for server in servers}
    for server in servers:
        server.close()
    assert len(tokens) == 2
    assert min(map(len, tokens)) >= 20


def test_an_address_in_use_is_said(server: PageServer, job: Job) -> None:
    with pytest.raises(ConfigError, match=f"the page cannot listen on 127.0.0.1:{server.port}"):
        PageServer(Address("127.0.0.1", server.port), job)


def test_a_row_is_explained_with_the_token_and_refused_without(server: PageServer) -> None:
    path = "/api/explain/a%2Fb"
    assert ask(server, path, method="POST", token="wrong", body='{"id": 7}')[0] == 403
    assert ask(server, path, method="POST", token="sesame", body='{"id": 7.50}') == (
        200,
        {"key": {"id": "7.50"}, "events": [], "stored": []},
    )
    wrong = ((400, "7", "not a JSON object"), (400, "{}", "not a JSON object"), (409, '{"x": 1}', "no key column"))
    for code, body, said in wrong:
        status, answer = ask(server, path, method="POST", token="sesame", body=body)
        assert (status, said in answer["error"]) == (code, True)


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"a":' * 10_000, '{"id":' + "[" * 900 + "]" * 900 + "}"])
def test_a_key_that_is_nested_deeply_is_the_client_s_mistake(server: PageServer, deep: str) -> None:
    status, _ = raw(server, f"POST /api/explain/a HTTP/1.1\r\nAuthorization: Bearer sesame\r\n{length(deep)}{deep}")
    assert status == (413 if len(deep) > 65_536 else 400 if "]" not in deep else 200)


def length(body: str) -> str:
    return f"Content-Length: {len(body)}\r\n\r\n"


def raw(server: PageServer, request: str) -> tuple[int, dict[str, str]]:
    """Status and headers of the answer to the bytes of a request."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(request.encode())
        with HTTPResponse(connection) as answer:
            answer.begin()
            return answer.status, {name.lower(): text for name, text in answer.getheaders()}


@pytest.mark.parametrize("size", [65_537, 3_000_000, 10**20])
def test_a_body_larger_than_any_key_is_refused_unread(server: PageServer, size: int) -> None:
    request = "POST /api/explain/a HTTP/1.1\r\nAuthorization: Bearer sesame\r\n"
    sent = "x" * min(size, 4 << 20)
    assert raw(server, f"{request}Content-Length: {size}\r\n\r\n{sent}")[0] == 413


@pytest.mark.parametrize("head", ["Transfer-Encoding: chunked", "Content-Length: -1"])
def test_a_body_of_unknown_length_is_refused(server: PageServer, head: str) -> None:
    assert raw(server, f"POST /api/explain/a HTTP/1.1\r\n{head}\r\n\r\n")[0] == 411


@pytest.mark.parametrize("path", ["/", "/api/streams", "/api/nothing"])
def test_no_answer_may_be_framed_kept_or_guessed_at(server: PageServer, path: str) -> None:
    _, headers = raw(server, f"GET {path} HTTP/1.1\r\n\r\n")
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8095", 200),
        ("127.0.0.1", 200),
        ("[::1]:8095", 200),
        ("10.2.3.4:80", 200),
        ("{own}:8095", 200),
        ("sink.shop.example", 200),
        ("SINK.shop.example.:443", 200),
        ("evil.example", 403),
        ("localhost.evil.example:8095", 403),
        ("127.0.0.1.evil.example", 403),
        ("[:", 403),
    ],
)
def test_a_host_that_is_not_this_one_is_refused(job: Job, host: str, status: int) -> None:
    """A name of its own that leads here lets a web page read what a browser on this host can reach."""
    server = PageServer(Address("127.0.0.1", 0), job, "sesame", ["sink.shop.example"])
    try:
        for path in ("/", "/api/streams", "/api/dead-letters/a%2Fb"):
            name = host.format(own=socket.gethostname())
            assert raw(server, f"GET {path} HTTP/1.1\r\nHost: {name}\r\n\r\n")[0] == status
    finally:
        server.close()


def test_what_records_hold_is_shown_with_the_token_only(server: PageServer) -> None:
    for token, whole in ((None, False), ("wrong", False), ("sesame", True)):
        [letter] = ask(server, "/api/dead-letters/a%2Fb", token=token)[1]["dead_letters"]
        assert (letter["reason"], "value" in letter) == ("no number", whole)
