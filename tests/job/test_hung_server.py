"""One of two ClickHouse servers hangs in the middle of inserts; streams of the other one go on."""

import re
import socket
import threading
import time
from collections.abc import Callable

import pytest
import yaml

from benchmarks.steady import COLUMNS, Load, running_job
from tests.support.proxy import FaultyProxy
from tests.support.sink import Place, inside

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow, pytest.mark.long]

_INSERT = re.compile(rb"INSERT[^\n]{1,9}INTO[^\n]{1,40}bad\d")
_STREAMS = 6
"""On the server that hangs."""
_AT_ONCE = 4
"""Inserts of a group of tasks that run at once."""


class HangingProxy(FaultyProxy):
    """Another address of a server. It does not answer inserts into the tables `bad0` and so on until it heals."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.held = 0
        self.healed = threading.Event()

    def _request(self, client: socket.socket) -> bytes:
        request = super()._request(client)
        if not self.healed.is_set() and _INSERT.search(request[:4000]):
            self.held += 1
            self.healed.wait(300)
            raise OSError("the connection is closed")
        return request


def test_streams_of_other_servers_go_on_while_one_hangs_in_all_that_its_batch_takes(place: Place) -> None:
    tables = ["good", *(f"bad{number}" for number in range(_STREAMS))]
    topics = [f"{place.database}.{table}" for table in tables]
    good, bad = Load(place.kafka.bootstrap, topics[:1]), Load(place.kafka.bootstrap, topics[1:])
    with HangingProxy(place.clickhouse.url) as proxy:
        configs = []
        for topic, table in zip(topics, tables, strict=True):
            place.client.command(
                f"CREATE TABLE {place.database}.{table} ({COLUMNS}) ENGINE = ReplacingMergeTree(_version, _is_deleted) "
                "ORDER BY id SETTINGS non_replicated_deduplication_window = 10000"
            )
            place.kafka.create_topic(topic, 1)
            url = place.clickhouse.url if table == "good" else proxy.url
            server = {"url": url, "database": place.database, "table": table, "timeout": 60}
            settings = {"kafka": {"topic": topic, "bootstrap.servers": place.kafka.bootstrap}, "clickhouse": server}
            configs.append(place.folder / f"{table}.yaml")
            configs[-1].write_text(yaml.safe_dump(settings), encoding="utf-8")
        good.spread(1)
        bad.spread(_STREAMS)
        assert inside("init", configs[0], "--apply").returncode == 0
        more = map(str, configs[1:])
        with running_job(configs[0], place.folder / "log", ["spark.master=local[2]"], *more):
            _until(lambda: proxy.held >= _AT_ONCE)
            began = time.time()
            good.steady(20, 20.0)
            _until(lambda: place.count("good FINAL") == good.sent)
            proxy.healed.set()
            _until(lambda: [place.count(f"{table} FINAL") for table in tables[1:]] == [1] * _STREAMS)
    [row] = place.rows(
        "SELECT quantilesExact(0.5, 0.99)(toUnixTimestamp64Milli(seen) - made) AS late FROM {db}.good "
        f"WHERE made >= {int(began * 1000)}"
    )
    assert row["late"][1] < 10_000, f"p50 and p99 in milliseconds: {row['late']}"


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 180
    while not holds():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.1)
