"""``HOST:PORT`` in settings."""

import pytest

from ch_sink.errors import ConfigError
from ch_sink.serve.listener import Address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9095", "127.0.0.1", 9095),
        ("sink.local:80", "sink.local", 80),
        ("[::1]:9095", "::1", 9095),
        (":9095", "127.0.0.1", 9095),
        ("9095", "127.0.0.1", 9095),
    ],
)
def test_an_address_has_a_host_and_a_port(text: str, host: str, port: int) -> None:
    assert Address.parse(text, "metrics") == Address(host, port)


@pytest.mark.parametrize("text", ["", "localhost", "localhost:", "localhost:x", "localhost:70000"])
def test_anything_else_is_refused_by_its_key(text: str) -> None:
    with pytest.raises(ConfigError, match="metrics"):
        Address.parse(text, "metrics")


def test_an_ipv6_address_is_shown_in_brackets() -> None:
    assert str(Address("::1", 80)) == "[::1]:80"
