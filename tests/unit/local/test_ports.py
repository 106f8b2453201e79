"""Ports of local servers that start one after the other."""

import socket

import pytest

from ch_sink import local as ports
from ch_sink.local import free_port


def test_servers_that_have_not_yet_started_get_different_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    first = free_port()
    monkeypatch.setattr(ports, "_RANGE", (first, first + 2))
    assert {free_port()} == {first + 1}
    with pytest.raises(OSError, match="no free port"):
        free_port()


def test_a_port_that_somebody_listens_on_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        monkeypatch.setattr(ports, "_RANGE", (port, port + 1))
        with pytest.raises(OSError, match="no free port"):
            free_port()
