"""The page over HTTP. How it looks and works in a browser: tests/real/test_page.py."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from ch_sink.errors import ChSinkError, ConfigError, StreamFailed
from ch_sink.model.address import Address
from ch_sink.serve.server import PageServer


class Job:
    """A job of two streams, one of them with a dead letter."""

    def __init__(self) -> None:
        self.retried: list[str] = []
        self.refuse = False

    def streams(self) -> Sequence[Mapping[str, Any]]:
        return [{"stream": "a/b", "state": "running"}, {"stream": "<b>", "state": "stopped"}]

    def dead_letters(self, stream: str) -> Sequence[Mapping[str, Any]]:
        if stream not in ("a/b", "<b>"):
            raise LookupError(f"no stream {stream!r}")
        return [{"partition": 0, "offset": 7, "kind": "decode", "reason": "no number", "value": "{}"}]

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


def test_the_page_is_one_document_that_loads_nothing_from_elsewhere(server: PageServer) -> None:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/", timeout=10) as answer:
        text, policy = answer.read().decode(), answer.headers["content-security-policy"]
    assert "<title>ch_sink</title>" in text
    assert "src=" not in text
    assert "href=" not in text
    assert policy.startswith("default-src 'none'")


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
    for body, said in (("7", "no JSON object"), ("{}", "no JSON object"), ('{"x": 1}', "no key column")):
        status, answer = ask(server, path, method="POST", token="sesame", body=body)
        assert (status, said in answer["error"]) == (409, True)
