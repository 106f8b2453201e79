"""The long runs of real kills and of rough weather, in short."""

import argparse
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from ch_sink.clickhouse import Client
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from tests.kill_run import ENGINES, ends_equal, kill_all, struck
from tests.soak_run import soak
from tests.support.endpoint import settings_for
from tests.support.kafka import fresh_topic
from tests.support.shop import RoughShop, changing

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(1800)]


@pytest.fixture
def shop(tmp_path: Path, kafka: LocalKafka) -> Iterator[RoughShop]:
    with EmbeddedClickHouse() as endpoint:
        client = Client(settings_for(endpoint.url))
        client.command("CREATE DATABASE rough")
        yield RoughShop(tmp_path, kafka, endpoint, client, "rough", fresh_topic("rough"))


def test_jobs_are_killed_and_frozen_while_keys_move(shop: RoughShop) -> None:
    happened: Counter[str] = Counter()
    with struck(shop.clickhouse, 20.0, "few", happened), changing(shop, 0.1):
        kill_all(shop, ENGINES, 6, "few", happened)
    assert ends_equal(shop) == {}
    assert happened["SIGKILL"] + happened["SIGSTOP"] == 6 * len(ENGINES)
    assert happened["in mid-batch"] > 6


def test_real_jobs_take_over_from_each_other_in_rough_weather(shop: RoughShop) -> None:
    """See tests.soak_run: this is its first three minutes."""
    chosen = argparse.Namespace(minutes=3.0, rate=10.0, job=60.0, server=30.0, column=50.0)
    found = soak(shop, shop.clickhouse, chosen)
    assert found["wrong"] == {}
    assert found["jobs killed"] >= 1
    assert found["columns"] >= 2
