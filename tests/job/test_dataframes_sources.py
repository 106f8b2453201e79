"""Spark's own Kafka source from a real broker, with kills, and Delta's change feed: each in a process of its own."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyspark
import pytest

from ch_sink.local.maven import Archive, ArchivesUnavailable, fetched
from ch_sink.spark.installed import find_java
from tests.job.test_dataframes import example
from tests.job.test_job import prepared
from tests.support.frames import Shelf
from tests.support.kafka import produce
from tests.support.sink import ROOT, Place

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.slow, pytest.mark.long]

_START = """
import json, sys
from ch_sink.spark.session import build_session
given = json.loads(sys.argv[1])
spark = build_session("frames", "local[2]", {"spark.sql.shuffle.partitions": "2", **given["conf"]})
"""

_FEED = """
from ch_sink.spark import changes
place = given["folder"] + "/orders"
spark.sql(f"CREATE TABLE delta.`{place}` (id BIGINT, status STRING) USING delta "
          "TBLPROPERTIES (delta.enableChangeDataFeed = true)")
spark.sql(f"INSERT INTO delta.`{place}` SELECT id, 'new' FROM range(100)")
spark.sql(f"UPDATE delta.`{place}` SET status = 'paid' WHERE id < 10")
spark.sql(f"UPDATE delta.`{place}` SET id = id + 1000 WHERE id < 5")
spark.sql(f"DELETE FROM delta.`{place}` WHERE id BETWEEN 20 AND 29")
spark.sql(f"MERGE INTO delta.`{place}` t USING (SELECT id, 'merged' AS status FROM range(95, 105)) s ON t.id = s.id "
          "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *")
apply = changes(given["config"], keys="id", op="_change_type", sequence_by="_commit_version")
for checkpoint in ("first", "second"):
    feed = spark.readStream.format("delta").option("readChangeFeed", "true").option("startingVersion", 0).load(place)
    query = feed.writeStream.foreachBatch(apply).option("checkpointLocation", given["folder"] + "/" + checkpoint)
    query.trigger(availableNow=True).start().awaitTermination()
print(json.dumps({row.id: row.status for row in spark.read.format("delta").load(place).collect()}))
"""


def jars(name: str, archive: Archive, wanted: tuple[str, ...]) -> str:
    """The archive and what it needs beside Spark, as `spark.jars` takes them."""
    java = find_java()
    if java is None:
        pytest.skip("needs Java 17 or newer")
    try:
        folder = fetched(name, [archive], java, without=["org.apache.hadoop", "org.slf4j"])
    except ArchivesUnavailable as error:
        pytest.skip(str(error))
    return ",".join(str(path) for path in sorted(folder.glob("*.jar")) if path.name.startswith(wanted))


def script(text: str, **given: Any) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", _START + text, json.dumps(given)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(process: "subprocess.Popen[str]") -> str:
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said[-4000:]
    return said


@pytest.mark.kafka
def test_sparks_kafka_source_with_kills_and_a_lost_checkpoint(place: Place, tmp_path: Path) -> None:
    archive = Archive("org.apache.spark", "spark-sql-kafka-0-10_2.13", pyspark.__version__)
    conf = {"spark.jars": jars(f"spark-kafka-{pyspark.__version__}", archive, ("spark-", "kafka-", "commons-pool2"))}
    _, topic, records = prepared(place, "postgres-busy-json_plain", "acct", chunk_offsets=200)
    place.client.command(f"SYSTEM STOP MERGES {place.database}.acct")  # so that its rows say how far the query is
    (place.folder / "acct.yaml").rename(place.folder / "orders.yaml")
    produce(place.kafka, records, topic)
    text = example("subscribe").replace("shop.public.orders", topic)
    body = "import os; os.chdir(given['folder'])\nexec(given['block'], {'spark': spark, **given['names']})\n"
    names = {"brokers": place.kafka.bootstrap, "checkpoint": str(tmp_path / "first")}
    given = {"conf": conf, "folder": str(place.folder), "block": text}
    killed = script(body, names=names, **given)
    deadline = time.monotonic() + 200
    while killed.poll() is None and place.count("acct") < 400 and time.monotonic() < deadline:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert place.count("acct") >= 400
    ended(script(body, names=names, **given))
    stored = place.count("acct")
    ended(script(body, names=names | {"checkpoint": str(tmp_path / "second")}, **given))
    assert place.count("acct") == stored
    place.client.command(f"SYSTEM START MERGES {place.database}.acct")
    assert place.differences("postgres-busy", "postgres", "acct") == []


def test_deltas_change_feed(shelf: Shelf) -> None:
    spark = ".".join(pyspark.__version__.split(".")[:2])
    archive = Archive("io.delta", f"delta-spark_{spark}_2.13", "4.4.0")
    own = ("delta-", "RoaringBitmap", "shims", "unitycatalog")
    conf = {
        "spark.jars": jars(f"delta-{spark}", archive, own),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }
    config = {key: part for key, part in shelf.config().items() if key != "kafka"}
    said = ended(script(_FEED, conf=conf, folder=str(shelf.folder), config=config))
    truth = {int(key): status for key, status in json.loads(said.strip().splitlines()[-1]).items()}
    assert len(truth) == 95
    assert shelf.rows() == truth
    once = shelf.client.rows(
        f"SELECT count() AS n, uniqExact(id, _version, _is_deleted) AS u FROM {shelf.database}.orders"
    )
    [found] = list(once)
    assert found["n"] == found["u"]
