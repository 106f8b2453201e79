"""The section ``rollups``: names from templates, and what is refused with its line."""

from pathlib import Path

import pytest

from ch_sink.config import Config
from ch_sink.config.job import load_job
from ch_sink.errors import ConfigError

FILE = """\
kafka: {topic: shop.public.orders, bootstrap.servers: "k:9092"}
clickhouse: {url: "http://h:8123", table: orders}
engine: collapsing
rollups:
  "revenue_of_{table}":
    by: {day: toDate(created), country: country}
    sum: {revenue: amount}
    count: orders
    avg: {mean: amount}
    where: status != 'draft'
"""


def loaded(path: Path, *changes: tuple[str, str]) -> Config:
    text = FILE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (path / "f.yaml").write_text(text)
    return load_job(path / "f.yaml").only()


def test_a_rollup_is_read_with_its_name_from_the_topic(tmp_path: Path) -> None:
    config = loaded(tmp_path)
    [made] = Config.from_task_json(config.to_task_json()).rollup_choices()
    assert made.name == "revenue_of_orders"
    assert made.by == (("day", "toDate(created)"), ("country", "country"))
    assert (made.sums, made.avgs, made.count) == ((("revenue", "amount"),), (("mean", "amount"),), "orders")
    assert (made.where, made.allow_float) == ("status != 'draft'", False)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("    count: orders", "    cuont: orders"), "line 8: rollups.*cuont is not a known key; did you mean .*count"),
        (
            ("    count: orders", "    min: {least: amount}"),
            "line 5: .* has min, which cannot be undone",
        ),
        (("    count: orders", "    uniq: {users: user}"), "has uniq, which cannot be undone"),
        (("    count: orders", "    count: day"), "has two columns 'day'"),
        (("    count: orders", "    count: _rows"), "has a column '_rows'; names that begin with _"),
        (("{day: toDate(created), country: country}", "{}"), "line 6: .*by"),
        (("revenue_of_{table}", "orders_current"), "has the name 'orders_current', which is taken"),
        (("revenue_of_{table}", "orders_at_version"), "has the name 'orders_at_version', which is taken"),
        (("revenue_of_{table}", "ch_sink_ledger"), "has the name 'ch_sink_ledger', which is taken"),
        (("revenue_of_{table}", "x_{tabel}"), "unknown field {tabel}"),
        (("engine: collapsing", "merge: true"), "rollups and merge: true exclude each other"),
        (("table: orders", "table: orders, cluster: c"), "rollups and clickhouse.cluster exclude each other"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        loaded(tmp_path, change).rollup_choices()


def test_a_rollup_without_sums_is_refused(tmp_path: Path) -> None:
    parts = (("    sum: {revenue: amount}\n", ""), ("    count: orders\n", ""), ("    avg: {mean: amount}\n", ""))
    with pytest.raises(ConfigError, match="computes nothing; give it sum, count or avg"):
        loaded(tmp_path, *parts)
