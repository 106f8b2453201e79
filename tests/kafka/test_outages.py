"""ClickHouse and Kafka stop, freeze, die and come back while a job runs: nothing to do by hand, equal afterwards."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ch_sink.clickhouse import Client
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from ch_sink.stream.pace import Pauses
from tests.support.endpoint import settings_for
from tests.support.hand import ENGINES
from tests.support.kafka import fresh_topic
from tests.support.live_job import LiveJob
from tests.support.shop import Shop, changing

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.slow]


@pytest.fixture
def endpoint() -> Iterator[EmbeddedClickHouse]:
    """A ClickHouse of the test's own."""
    with EmbeddedClickHouse() as made:
        yield made


@pytest.fixture
def shop(tmp_path: Path, kafka: LocalKafka, endpoint: EmbeddedClickHouse) -> Shop:
    client = Client(settings_for(endpoint.url))
    client.command("CREATE DATABASE shop")
    return Shop(tmp_path, kafka, endpoint, client, "shop", fresh_topic("out"))


@pytest.fixture
def brittle(tmp_path: Path, endpoint: EmbeddedClickHouse) -> Iterator[Shop]:
    """With a Kafka of the test's own, too."""
    client = Client(settings_for(endpoint.url))
    client.command("CREATE DATABASE shop")
    with LocalKafka(path=tmp_path / "kafka") as broker:
        if broker.kind != "kafka":
            pytest.skip(f"needs a real broker: {broker.why}")
        yield Shop(tmp_path, broker, endpoint, client, "shop", fresh_topic("out"))


def freeze(endpoint: EmbeddedClickHouse, seconds: float) -> None:
    assert endpoint.pid is not None
    os.kill(endpoint.pid, signal.SIGSTOP)
    time.sleep(seconds)
    os.kill(endpoint.pid, signal.SIGCONT)


def stop(endpoint: EmbeddedClickHouse, seconds: float) -> None:
    endpoint.stop()
    time.sleep(seconds)
    endpoint.start()


def kill(endpoint: EmbeddedClickHouse, seconds: float) -> None:
    endpoint.kill()
    time.sleep(seconds)
    endpoint.start()


OUTAGES: dict[str, Callable[[EmbeddedClickHouse, float], None]] = {"stop": stop, "freeze": freeze, "kill": kill}


@pytest.mark.long
@pytest.mark.parametrize("seconds", [3.0, 600.0])
def test_clickhouse_goes_away_and_comes_back(
    seconds: float, shop: Shop, endpoint: EmbeddedClickHouse, caplog: pytest.LogCaptureFixture
) -> None:
    files = [
        shop.add(engine, engine, partitions=2, clickhouse={"timeout": 2, "connect_timeout": 1})
        for engine in [*ENGINES, "append"]
    ]
    long = seconds > 60
    with LiveJob(files, pauses=Pauses() if long else Pauses(0.1, 1.0)) as job:
        with changing(shop, 0.5 if long else 0.02):
            for name, outage in OUTAGES.items():
                job.until(lambda: sum(s.summary.batches for s in job.job.streams) > 3)
                waits: set[str] = set()
                seen = threading.Thread(target=lambda waits=waits: _watch(job, waits, seconds), daemon=True)
                seen.start()
                outage(endpoint, seconds)
                seen.join()
                # A short freeze is within the patience of a single request and its repeats.
                assert waits or (name == "freeze" and not long), f"no stream waited while the server was away ({name})"
                job.until(lambda: {s.state for s in job.states().values()} == {"running"})
        job.until(lambda: not shop.differences())
    assert job.failures == {}
    said = [r.getMessage() for r in caplog.records if r.name == "ch_sink" and " waits: " in r.getMessage()]
    assert 1 <= len(said) <= 2 * len(OUTAGES), "one line for an outage, however many streams wait"


def _watch(job: LiveJob, waits: set[str], seconds: float) -> None:
    """Collect the streams that wait."""
    deadline = time.monotonic() + seconds + 2
    while time.monotonic() < deadline:
        waits |= {name for name, s in job.states().items() if s.state == "waiting"}
        time.sleep(0.02)


@pytest.mark.parametrize("seconds", [3.0, pytest.param(600.0, marks=pytest.mark.long)])
def test_clickhouse_is_away_when_the_job_starts(seconds: float, shop: Shop, endpoint: EmbeddedClickHouse) -> None:
    files = [shop.add(engine, engine) for engine in ("replacing", "collapsing")]
    for table in shop.rows:
        shop.change(table, 20)
    shop.flush()
    endpoint.stop()
    with LiveJob(files) as job:
        job.until(lambda: {s.state for s in job.states().values()} == {"waiting"})
        time.sleep(seconds)
        endpoint.start()
        job.until(lambda: not shop.differences())
        job.until(lambda: {s.state for s in job.states().values()} == {"running"})
    assert job.failures == {}


@pytest.mark.long
@pytest.mark.parametrize("seconds", [3.0, 600.0])
def test_kafka_goes_away_then_both_in_turn(seconds: float, brittle: Shop, endpoint: EmbeddedClickHouse) -> None:
    shop, broker = brittle, brittle.kafka
    files = [
        shop.add(engine, engine, partitions=2, clickhouse={"timeout": 2, "connect_timeout": 1})
        for engine in ("replacing", "collapsing", "append")
    ]
    long = seconds > 60
    with LiveJob(files, pauses=Pauses() if long else Pauses(0.1, 1.0)) as job:
        with changing(shop, 0.5 if long else 0.02):
            job.until(lambda: sum(s.summary.batches for s in job.job.streams) > 3)
            broker.halt(graceful=False)
            time.sleep(seconds)
            if long:
                assert {s.state for s in job.states().values()} == {"waiting"}
            broker.start()
            stop(endpoint, seconds)
            broker.halt()
            freeze(endpoint, seconds)
            broker.start()
            job.until(lambda: {s.state for s in job.states().values()} == {"running"})
        job.until(lambda: not shop.differences())
    assert job.failures == {}
