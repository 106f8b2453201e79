"""What ``check`` says of the connector, and of the order that table and configuration take from it."""

import pytest

from ch_sink.discovery.connector_findings import order_findings, source_finding
from ch_sink.discovery.sample_rows import connector_of
from ch_sink.model.change import Records
from ch_sink.model.policy import policy_of
from ch_sink.types.column import Column
from tests.support.document_run import document_table
from tests.support.event import chunk_of


def records(*values: bytes | None) -> Records:
    n = len(values)
    return chunk_of([None] * n, values)


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


@pytest.mark.parametrize(
    ("connector", "version", "policy", "said"),
    [
        ("postgresql", "UInt128", {}, []),
        ("postgresql", "UInt64", {}, []),
        ("oracle", "Int64", {"version_strategy": "kafka_offset"}, []),
        ("postgresql", "UInt256", {"version_strategy": "kafka_offset"}, []),
        ("mysql", "DateTime64(3)", {}, []),
        ("postgresql", "UInt64", {"tombstones": "delete"}, ["warn: ordered by kafka_offset"]),
        ("db2", "DateTime64(3)", {}, ["warn: ordered by source_time"]),
        ("postgresql", "UInt64", {"version_strategy": "source_position"}, ["fail: version.strategy: source_position"]),
    ],
)
def test_an_order_that_does_not_tell_swapped_keys_apart_is_a_warning(
    connector: str, version: str, policy: dict[str, str], said: list[str]
) -> None:
    table = document_table([Column("id", "Int64")], key="id", version=version)
    found = order_findings(connector, table, policy_of(**policy))  # type: ignore[arg-type]
    assert [f"{f.level}: {f.detail}"[: len(text)] for f, text in zip(found, said, strict=True)] == said
