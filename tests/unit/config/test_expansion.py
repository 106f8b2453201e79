"""Which streams of a job have a table that several ask for."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from ch_sink.config import Config, Expansion, expand, load_job
from ch_sink.model.values import SourceTable

JOB = """
kafka: {bootstrap.servers: "localhost:9092", topics: routed}
clickhouse: {url: "http://localhost:8123", database: shop, table: "{table}"}
"""
ORDERS, USERS = SourceTable("d", "p", "orders"), SourceTable("d", "p", "users")
READ = {("routed", "d.p.orders"), ("routed", "d.p.users")}


def expanded(
    path: Path, seen: set[SourceTable], taken: Iterable[Config] = (), known: Iterable[tuple[str, str]] = ()
) -> Expansion:
    return expand(
        [load_job(path, (), {})], lambda _: ("routed",), lambda *_: seen, taken=taken, known=lambda: set(known)
    )


@pytest.mark.parametrize("schema", ["a", "z"])
def test_of_two_source_tables_for_one_table_the_one_that_was_read_keeps_it(tmp_path: Path, schema: str) -> None:
    """Whatever the order of their names is, while the job runs and when it is started again."""
    path = tmp_path / "shop.yaml"
    path.write_text(JOB)
    before = expanded(path, {ORDERS, USERS}).streams
    said = f"source tables d.p.orders and d.{schema}.orders of topic routed would both be written to shop.orders"
    for taken, known in (((), READ), (before, set()), (before, READ)):
        found = expanded(path, {ORDERS, USERS, SourceTable("d", schema, "orders")}, taken, known)
        assert [c.source_table for c in found.streams] == ["d.p.orders", "d.p.users"]
        assert said in str(found.refused["routed"])
        assert found.ran_before
