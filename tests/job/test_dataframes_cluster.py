"""A DataFrame on a real cluster of two workers, of which an executor or a worker is killed in mid-batch."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.support.cluster import cluster
from tests.support.frames import Shelf, change
from tests.support.sink import ROOT

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

_ROWS = 4000
"""Of each of two partitions."""
_QUERY = """
import sys
from ch_sink.spark import sink
from ch_sink.spark.session import build_session

master, folder, config, checkpoint = sys.argv[1:]
spark = build_session("door", master, {"spark.executor.memory": "600m"})
rows = spark.readStream.schema(spark.read.parquet(folder).schema).parquet(folder)
query = rows.writeStream.foreachBatch(sink(config)).option("checkpointLocation", checkpoint)
query.trigger(availableNow=True).start().awaitTermination()
"""


@pytest.mark.parametrize("victim", ["executor", "worker"])
def test_a_batch_whose_cluster_loses_a_part_is_stored_once(victim: str, shelf: Shelf, tmp_path: Path) -> None:
    config = tmp_path / "orders.yaml"
    config.write_text(yaml.safe_dump(shelf.config(chunk_offsets=20)), encoding="utf-8")
    rows = {p: [change(2 * n + p, n + 1) for n in range(_ROWS)] for p in (0, 1)}
    folder = shelf.write(rows).parent
    with cluster(workers=2) as spark:
        query = subprocess.Popen(
            [sys.executable, "-c", _QUERY, spark.url, str(folder), str(config), str(tmp_path / "checkpoint")],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        while shelf.count() < 200 and query.poll() is None:
            time.sleep(0.01)
        stored = shelf.count()
        if victim == "executor":
            spark.kill_executor()
        else:
            spark.kill("worker-0")
        said, _ = query.communicate(timeout=300)
    assert query.returncode == 0, said
    assert stored < 2 * _ROWS, "the batch was over before the kill"
    assert len(shelf.rows()) == 2 * _ROWS
    assert shelf.count() == 2 * _ROWS, "rows are stored twice"
