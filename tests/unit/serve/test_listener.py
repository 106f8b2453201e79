"""What one client may cost the job that serves the page and the metrics."""

import os
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import pytest
from prometheus_client import CollectorRegistry

from ch_sink.serve import listener
from ch_sink.serve.listener import Address, Answer, Listener, Request
from ch_sink.serve.metrics import MetricsServer
from ch_sink.serve.page import PageServer
from tests.unit.serve.test_page import Job

HERE = Address("127.0.0.1", 0)


@pytest.fixture(params=["page", "metrics"])
def server(request: pytest.FixtureRequest) -> Iterator[Listener]:
    found: Listener = (
        PageServer(HERE, Job(), "sesame") if request.param == "page" else MetricsServer(HERE, CollectorRegistry())
    )
    with closing(found):
        yield found


def connect(server: Listener) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=20)


def fetch(server: Listener) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/", timeout=20) as answer:
        return int(answer.status)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def drip(connection: socket.socket, seconds: float) -> float:
    """Send a byte now and then until the server has closed the connection; how long that took."""
    begun = time.monotonic()
    with suppress(OSError):
        while time.monotonic() - begun < seconds:
            connection.sendall(b"a")
            time.sleep(0.05)
    return time.monotonic() - begun


HALF = (b"", b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n{")


@pytest.mark.sampled(1)
def test_half_sent_requests_take_few_descriptors_and_the_next_request_is_answered(server: Listener) -> None:
    before = descriptors()
    with ExitStack() as open_connections:
        for sent in HALF * 150:
            open_connections.enter_context(connect(server)).sendall(sent)
        assert fetch(server) == 200
        assert descriptors() - before - 450 <= 100, "450 are the clients' own"


def test_a_request_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_ARRIVE_SECONDS", 0.5)
    answered: list[Request] = []

    def answer(request: Request) -> Answer:
        answered.append(request)
        return Answer.plain(200, "here")

    with closing(Listener(HERE, answer, "this")) as server:
        for begin in (b"GET /?", b"GET / HTTP/1.1\r\nX: ", b"POST / HTTP/1.1\r\nContent-Length: 999\r\n\r\n"):
            with connect(server) as connection:
                connection.sendall(begin)
                assert drip(connection, 20) < 10
        assert fetch(server) == 200
    assert len(answered) == 1


def test_headers_without_end_are_not_kept(server: Listener) -> None:
    taken = 0
    with connect(server) as connection, suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
        connection.sendall(b"GET / HTTP/1.1\r\n")
        for number in range(90):
            connection.sendall(b"X-%d: %s\r\n" % (number, b"a" * 60_000))
            time.sleep(0.01)
            taken += 60_000
    assert taken < 3 << 20, "of five and a half million"
    assert fetch(server) == 200


def test_requests_beyond_those_that_are_answered_are_refused_and_not_kept() -> None:
    begun, free = threading.Semaphore(0), threading.Event()

    def answer(_: Request) -> Answer:
        begun.release()
        free.wait(20)
        return Answer.plain(200, "here")

    with closing(Listener(HERE, answer, "this")) as server, ExitStack() as waiting:
        connections = [waiting.enter_context(connect(server)) for _ in range(16)]
        for connection in connections:
            connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert all(begun.acquire(timeout=20) for _ in connections)
        with connect(server) as one_more:
            one_more.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert one_more.recv(12) == b"HTTP/1.0 503"
        free.set()
        assert {connection.recv(12) for connection in connections} == {b"HTTP/1.0 200"}


def test_a_failure_of_the_job_is_an_answer_that_gives_nothing_away(caplog: pytest.LogCaptureFixture) -> None:
    def answer(_: Request) -> Answer:
        raise KeyError("hunter2")

    with closing(Listener(HERE, answer, "this")) as server, connect(server) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        said = b"".join(iter(lambda: connection.recv(4096), b""))
    assert said.startswith(b"HTTP/1.0 500")
    assert b"hunter2" not in said
