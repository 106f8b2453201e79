"""The benchmark suite's own arithmetic, and that its events are what it says: the product decodes all of them."""

from collections import Counter

import numpy as np
import pytest

from benchmarks.suite.changes import Mix, changes
from benchmarks.suite.compare import compare, verdict
from benchmarks.suite.formats import encoder
from benchmarks.suite.report import bars, table
from benchmarks.suite.rows import ORDERS
from benchmarks.suite.workloads import QUICK, WORKLOADS, Workload
from ch_sink.clickhouse import Client, detect
from ch_sink.decode import Decoder
from ch_sink.kafka import schema_registry
from ch_sink.model.change import Op, Records
from ch_sink.model.policy import policy_of
from tests.support.registry_server import registry_server


@pytest.mark.long
def test_a_mix_holds_its_shares_and_is_the_same_again() -> None:
    mix = Mix(snapshot=20, updates=40, deletes=10)
    drawn = list(changes(ORDERS, mix, 20_000))
    found = Counter(change.op for change in drawn)
    assert len(drawn) == 20_000
    assert found["r"] == 4_000
    assert abs(found["u"] / 16_000 - 0.4) < 0.02
    assert abs(found["d"] / 16_000 - 0.1) < 0.02
    assert drawn == list(changes(ORDERS, mix, 20_000))


def test_a_before_image_is_the_row_as_it_was() -> None:
    rows: dict[int, object] = {}
    for change in changes(ORDERS, Mix(key_changes=5), 5_000):
        if change.op in "ud":
            assert change.before == rows[change.key]
        rows[change.key] = change.after


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_is_decoded_without_a_bad_record(name: str, client: Client, database: str) -> None:
    workload: Workload = WORKLOADS[name]
    made = encoder(workload.form, workload.rows)
    records = list(made.records(workload.rows, changes(workload.rows, workload.mix, 500)))
    client.command(workload.create(database, "t"))
    policy = policy_of()
    chunk = Records(
        "t",
        0,
        np.arange(len(records), dtype=np.int64),
        np.zeros(len(records), dtype=np.int64),
        [record.key for record in records],
        [record.value for record in records],
        [record.headers for record in records],
    )
    with registry_server({n: {"schema": text} for n, text in made.schemas.items()}) as server:
        registry = schema_registry({"url": server.url}) if made.schemas else None
        batch = Decoder(detect(client, database, "t", policy), policy, registry=registry).decode(chunk)
    assert batch.bad == []
    assert batch.skipped == {}
    assert len(batch.op) == len(records) >= 500
    deletes = sum(change.op == "d" for change in changes(workload.rows, workload.mix, 500))
    assert np.count_nonzero(batch.op == Op.DELETE) == deletes


def test_a_difference_counts_only_beyond_the_spread_of_both() -> None:
    assert verdict([1.0, 1.2], [1.3, 1.4]) == "faster"
    assert verdict([1.0, 1.2], [1.1, 1.4]) == "same"
    assert verdict([1.0, 1.2], [0.8, 0.9]) == "slower"


def result(name: str, *steady: float) -> dict[str, object]:
    repeats = [
        {"steady": s, "ratio": s / 1000, "limit": 1000.0, "cpu": {"workers": 5.0, "server": 1.0}} for s in steady
    ]
    return {"name": name, "repeats": repeats, "bytes_an_event": 770.0, "worker_mib": 300.0, "rows": 100, "parts": 4}


def test_compare_names_each_workload_that_both_have() -> None:
    before, after = {"results": [result("json", 100, 110), result("avro", 5)]}, {"results": [result("json", 200, 210)]}
    [line] = compare(before, after)
    assert line.split() == ["json", "steady", "+95%", "faster", "ratio", "+95%", "faster"]


def test_report_has_a_line_and_bars_for_each_workload() -> None:
    found = [result("json", 100_000, 120_000), result("a < b", 5_000)]
    assert table(found).count("\n") == 3
    assert "| json | 770 | 110 (100–120) |" in table(found)
    svg = bars(found)
    assert "a &lt; b" in svg
    assert svg.count("<rect") == 1 + 2 * (1 + 5)


def test_make_bench_runs_workloads_that_exist() -> None:
    assert set(QUICK) <= set(WORKLOADS)
