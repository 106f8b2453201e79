"""Many streams in one job, five of them broken in five ways: the others equal their source while the five are stopped.

Each is mended and resumed while the job runs, and is equal after that.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from ch_sink.clickhouse import Client
from ch_sink.local.kafka import LocalKafka
from tests.support.endpoint import settings_for
from tests.support.kafka import fresh_topic
from tests.support.live_job import LiveJob
from tests.support.rights import Limited
from tests.support.shop import Shop
from tests.support.sink import inside

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture
def limited(tmp_path: Path) -> Iterator[Limited]:
    """A server of the test's own, since it is restarted with other rights."""
    made = Limited(tmp_path / "clickhouse")
    made.clickhouse.start()
    yield made
    made.clickhouse.stop()


def states(*files: Path) -> dict[str, dict[str, object]]:
    shown = inside("status", *files, "--json")
    assert shown.returncode == 0, shown.stderr
    return {s["stream"]: s for s in json.loads(shown.stdout)["streams"]}


@pytest.mark.parametrize("number", [pytest.param(n, marks=pytest.mark.long) for n in (7, 45)])
def test_the_others_are_equal_while_five_are_mended_and_resumed(
    number: int, tmp_path: Path, broker: LocalKafka, limited: Limited
) -> None:
    client = Client(settings_for(limited.clickhouse.url))
    client.command(f"CREATE DATABASE {DATABASE}")
    shop = Shop(tmp_path, broker, limited.clickhouse, client, DATABASE, fresh_topic("iso"))
    well = [shop.add(f"well_{n:02}") for n in range(number)]
    broken = {
        "column": shop.add("column"),
        "poison": shop.add("poison", errors={"max": 2}),
        "rights": shop.add("rights"),
        "gone": shop.add("gone"),
        "engine": shop.add("engine", "log"),
    }
    for table in shop.rows:
        shop.change(table, 20)
    shop.flush()
    files = [*well, *broken.values()]
    with LiveJob(files) as job:
        job.until(lambda: not [t for t in shop.differences() if t != "engine"])
        _break(shop, job, limited)
        job.until(lambda: all(job.states()[name].state == "stopped" for name in broken))
        for table in shop.rows:
            if table.startswith("well"):
                shop.change(table, 10)
        shop.flush()
        job.until(lambda: not [t for t in shop.differences() if t.startswith("well")])
        # The job notes states in the ledger once a second.
        job.until(lambda: {n for n, s in states(*files).items() if s["state"] == "stopped"} == set(broken))
        seen = states(*files)
        assert {s["state"] for name, s in seen.items() if name not in broken} == {"running"}
        for name, part in NAMED.items():
            assert part in str(seen[name]["error"]), seen[name]
            assert seen[name]["next"], seen[name]
        _mend(shop, limited)
        shop.flush()
        for name, file in broken.items():
            assert inside("resume", file).returncode == 0
            job.until(lambda name=name: job.states()[name].state == "running")
        job.until(lambda: not shop.differences())
        job.until(lambda: {s["state"] for s in states(*files).values()} == {"running"})
        for table in shop.rows:
            shop.change(table, 5, **({"colour": "red"} if table == "column" else {}))
        shop.flush()
        job.until(lambda: not shop.differences())
    assert job.failures == {}


DATABASE = "iso"
NAMED = {
    "column": "'colour'",
    "poison": "3 dead letters of this stream, and errors.max is 2",
    "rights": f"INSERT(id, v, _version, _is_deleted) ON {DATABASE}.rights",
    "gone": "is the next to be read, but the topic holds",
    "engine": "engine Log",
}
"""What each error names."""


def _break(shop: Shop, job: LiveJob, limited: Limited) -> None:
    shop.change("column", 5, colour="red")
    for _ in range(3):
        shop.send_bytes("poison", b'{"id":1}', b'{"before":null,"aft')
    # The job waits until the server is back; then its user may no longer insert into one of the tables.
    limited.restart(["GRANT ALL ON *.*", f"REVOKE INSERT ON {DATABASE}.rights"])
    shop.change("rights", 5)
    # Its topic loses events that were not read, since the stream is paused.
    gone = shop.folder / "gone.yaml"
    assert inside("pause", gone).returncode == 0
    job.until(lambda: job.states()["gone"].state == "paused")
    shop.flush()
    shop.change("gone", 5)
    shop.flush()
    place = TopicPartition(shop.topic("gone"), 0, shop.sent["gone"] - 2)
    admin = AdminClient({"bootstrap.servers": shop.kafka.bootstrap})
    for future in admin.delete_records([place]).values():
        future.result(20)
    assert inside("resume", gone).returncode == 0


def _mend(shop: Shop, limited: Limited) -> None:
    """Each as its error says."""
    shop.client.command(f"ALTER TABLE {shop.database}.column ADD COLUMN colour Nullable(String)")
    shop.file("poison", errors={"max": 10})
    limited.restart(None)
    shop.file("gone", on_data_loss="continue")
    shop.snapshot("gone")
    shop.client.command(f"DROP TABLE {shop.database}.engine SYNC")
    shop.create("engine", "replacing")
