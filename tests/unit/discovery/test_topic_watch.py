"""Topics that come and go while a job runs."""

from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from ch_sink.config import Config, Expansion, Job, expand, load_job
from ch_sink.discovery.topic_watch import TopicWatch

JOB = r"""
kafka: {bootstrap.servers: "localhost:9092", topics: 's\.p\..*'}
clickhouse: {url: "http://localhost:8123", database: shop, table: "{table}"}
checkpoint: c
create_tables: true
tables:
  - match: s\.p\.odd
    clickhouse: {table: a}
  - match: s\.p\.audit
    skip: true
"""


class Broker:
    """Topics, some of them without events."""

    def __init__(self, *topics: str) -> None:
        self.topics, self.empty = set(topics), set[str]()

    def watch(self, path: Path, wanted=lambda _: True) -> TopicWatch:
        return TopicWatch([load_job(path, (), {})], wanted, expand=self.expand, empty=self.without_events)

    def expand(self, jobs: Sequence[Job], taken: Collection[Config]) -> Expansion:
        return expand(jobs, lambda _: self.topics, lambda *_: set(), taken=taken)

    def without_events(self, configs: Sequence[Config]) -> set[str]:
        return {c.stream_name for c in configs if c.kafka.topic in self.empty}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "shop.yaml"
    file.write_text(JOB)
    return file


def topics(configs: Sequence[Config]) -> list[str]:
    return [c.kafka.topic for c in configs]


def test_new_topics_join_and_deleted_ones_leave(path):
    broker = Broker("s.p.a", "other")
    watch = broker.watch(path)
    assert topics(watch.look().joined) == ["s.p.a"]
    assert watch.look().joined == ()
    broker.topics |= {"s.p.b", "s.p.audit"}
    assert topics(watch.look().joined) == ["s.p.b"]
    broker.topics.discard("s.p.a")
    assert watch.look().left == (), "brokers that restart may list fewer topics for a moment"
    assert watch.look().left == ("s.p.a:shop.a",)
    assert watch.look().left == ()
    broker.topics.add("s.p.a")
    assert topics(watch.look().joined) == ["s.p.a"]


def test_a_topic_that_is_missing_for_a_moment_stays(path):
    broker = Broker("s.p.a")
    watch = broker.watch(path)
    watch.look()
    for _ in range(3):
        broker.topics.clear()
        assert watch.look().left == ()
        broker.topics.add("s.p.a")
        found = watch.look()
        assert (found.left, found.joined) == ((), ())


def test_a_pattern_that_matches_nothing_waits_and_says_so_once(path):
    broker = Broker("other")
    watch = broker.watch(path)
    first = watch.look()
    assert first.joined == ()
    assert "no topic matches" in first.notes[0]
    assert watch.look().notes == ()
    broker.topics.add("s.p.a")
    assert topics(watch.look().joined) == ["s.p.a"]


def test_a_topic_without_events_joins_with_its_first(path):
    broker = Broker("s.p.a", "s.p.b")
    broker.empty = {"s.p.b"}
    watch = broker.watch(path)
    found = watch.look()
    assert topics(found.joined) == ["s.p.a"]
    assert [n for n in found.notes if "s.p.b holds no event yet" in n]
    broker.empty.clear()
    assert topics(watch.look().joined) == ["s.p.b"]


def test_a_topic_of_a_table_that_is_taken_is_refused_once_and_the_running_stream_stays(path):
    broker = Broker("s.p.odd")
    watch = broker.watch(path)
    assert topics(watch.look().joined) == ["s.p.odd"]
    broker.topics |= {"s.p.a"}
    found = watch.look()
    assert found.joined == ()
    assert "would both be written to shop.a" in str(found.refused["s.p.a"])
    assert watch.look().refused == {}


def test_only_the_streams_that_are_meant_join(path):
    broker = Broker("s.p.a", "s.p.b")
    watch = broker.watch(path, lambda config: config.clickhouse.table == "b")
    assert topics(watch.look().joined) == ["s.p.b"]
