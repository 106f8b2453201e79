"""The line that ``check`` has for the connector."""

import numpy as np
import pytest

from ch_sink.discovery.connector import connector_of
from ch_sink.discovery.connector_findings import source_finding
from ch_sink.model.change import Records


def records(*values: bytes | None) -> Records:
    n = len(values)
    return Records("t", 0, np.arange(n), np.zeros(n, dtype=np.int64), [None] * n, list(values))


@pytest.mark.parametrize(
    ("connector", "how"),
    [("oracle", "source_position"), ("singlestore", "kafka_offset"), ("mariadb", "source_position")],
)
def test_a_known_connector_is_told_with_its_order(connector: str, how: str) -> None:
    found = source_finding(connector)
    assert (found.level, found.detail) == ("ok", f"{connector}, ordered by {how}")


def test_an_unknown_connector_is_a_warning_that_says_what_it_means() -> None:
    found = source_finding("vitess")
    assert found.level == "warn"
    assert "'vitess'" in found.detail
    assert "Kafka" in found.detail


def test_the_connector_is_that_of_the_newest_change_event() -> None:
    event = b'{"op":"c","after":{"a":1},"source":{"connector":"%s","ts_ms":1}}'
    wrapped = b'{"schema":null,"payload":' + event % b"oracle" + b"}"
    heads, tails = records(event % b"mysql"), records(b"no json", wrapped, b'{"ts_ms":1}', b'"text"', None)
    assert connector_of([heads, tails]) == "oracle"
    assert connector_of([records(None, b"\x00\x00\x00\x00\x01")]) == ""
