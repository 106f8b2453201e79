"""Topics that come and go while a job runs."""

import logging
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from ch_sink.config import Config, Expansion, Job, expand, load_job
from ch_sink.discovery.statuses import refused_statuses
from ch_sink.discovery.topic_watch import TopicWatch
from ch_sink.errors import BrokerUnavailable, ClickHouseUnavailable, ConfigError
from ch_sink.model.values import SourceTable

JOB = r"""
kafka: {bootstrap.servers: "localhost:9092", topics: 's\.p\..*'}
clickhouse: {url: "http://localhost:8123", database: shop, table: "{table}"}
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
        self.known, self.unreachable = set[tuple[str, str]](), set[str]()
        self.begun = set[str]()

    def watch(self, path: Path, wanted=lambda _: True) -> TopicWatch:
        def jobs() -> list[Job]:
            return [load_job(path, (), {})]

        return TopicWatch(
            jobs(), wanted, expand=self.expand, empty=self.without_events, reload=jobs, begun=lambda _: self.begun
        )

    def expand(self, jobs: Sequence[Job], taken: Collection[Config]) -> Expansion:
        return expand(jobs, lambda _: self.topics, self.look, taken=taken, known=lambda: self.known)

    def look(self, _config: Config, topic: str) -> set[SourceTable]:
        if topic in self.unreachable:
            raise BrokerUnavailable("no broker answers")
        return set()

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
    assert [n for n in found.notes if "s.p.b has no event yet" in n]
    broker.empty.clear()
    assert topics(watch.look().joined) == ["s.p.b"]


def starts(configs: Sequence[Config]) -> dict[str, str]:
    return {config.kafka.topic: config.start for config in configs}


@pytest.fixture
def latest(path):
    path.write_text(path.read_text() + "start: latest\n")
    return path


def test_topics_with_which_a_file_begins_start_at_the_latest_offset_and_later_ones_at_the_earliest(latest):
    broker = Broker("s.p.a", "s.p.b", "s.p.c")
    broker.empty.add("s.p.c")
    watch = broker.watch(latest)
    assert starts(watch.look().joined) == {"s.p.a": "latest", "s.p.b": "latest"}
    broker.empty.clear()
    broker.topics.add("s.p.d")
    assert starts(watch.look().joined) == {"s.p.c": "earliest", "s.p.d": "earliest"}


def test_a_topic_that_came_while_no_job_ran_starts_at_the_earliest_offset(latest):
    broker = Broker("s.p.a", "s.p.b")
    broker.begun.add("s.p.a:shop.a")
    assert starts(broker.watch(latest).look().joined) == {"s.p.a": "latest", "s.p.b": "earliest"}


def test_a_ledger_that_does_not_answer_is_asked_again(latest):
    broker, answers = Broker("s.p.a", "s.p.b"), [ClickHouseUnavailable("no answer"), {"s.p.a:shop.a"}]

    def begun(_):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    jobs = [load_job(latest, (), {})]
    watch = TopicWatch(jobs, expand=broker.expand, empty=broker.without_events, begun=begun)
    assert watch.first(logging.getLogger("test")) == ()
    assert starts(watch.look().joined) == {"s.p.a": "latest", "s.p.b": "earliest"}


def test_another_file_that_has_begun_says_nothing_of_this_one(latest, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text(JOB.replace("s\\.p", "o\\.p").replace("database: shop", "database: more"))
    broker = Broker("s.p.a", "s.p.b", "o.p.a")
    broker.begun.add("o.p.a:more.a")
    files = [load_job(file, (), {}) for file in (latest, other)]
    watch = TopicWatch(files, expand=broker.expand, empty=broker.without_events, begun=lambda _: broker.begun)
    assert starts(watch.look().joined) == {"s.p.a": "latest", "s.p.b": "latest", "o.p.a": "ledger"}


def test_a_topic_of_a_table_that_is_taken_is_refused_once_and_the_running_stream_stays(path):
    broker = Broker("s.p.odd")
    watch = broker.watch(path)
    assert topics(watch.look().joined) == ["s.p.odd"]
    broker.topics |= {"s.p.a"}
    found = watch.look()
    assert found.joined == ()
    assert "would both be written to shop.a" in str(found.refused["s.p.a"])
    [(topic, (config, error))] = watch.refused.items()
    assert (topic, config.stream_name, config.kafka.topic) == ("s.p.a", "s.p.a", "s.p.a")
    assert error is found.refused["s.p.a"]
    assert watch.look().refused == {}
    assert watch.refused.keys() == {"s.p.a"}


def test_a_source_table_joins_though_another_of_its_topic_is_refused(path):
    tables = {SourceTable("s", "x", "a"), SourceTable("s", "y", "a")}
    path.write_text(JOB + "split: true\n")
    broker = Broker("s.p.all")
    broker.look = lambda _config, topic: tables  # type: ignore[method-assign]
    watch = broker.watch(path)
    found = watch.look()
    assert ([c.source_table for c in found.joined], found.refused.keys()) == (["s.x.a"], {"s.p.all"})
    tables |= {SourceTable("s", "x", "b")}
    assert [c.source_table for c in watch.look().joined] == ["s.x.b"]
    assert watch.look().joined == ()


def test_a_refused_topic_joins_once_its_file_gives_it_a_place(path):
    broker = Broker("s.p.odd")
    watch = broker.watch(path)
    watch.look()
    broker.topics |= {"s.p.a", "s.p.b"}
    assert topics(watch.look().joined) == ["s.p.b"]
    path.write_text("this: is not: a file")
    assert watch.look().settled == (), "it is being written"
    path.write_text(JOB.replace("{table: a}", "{table: odd}"))
    assert watch.look().settled == (), "the stream of s.p.odd keeps the table that it has, while the job runs"
    path.write_text(JOB + "  - match: s\\.p\\.a\n    clickhouse: {table: other}\n")
    found = watch.look()
    assert (found.settled, found.joined) == (("s.p.a",), ())
    assert watch.refused == {}
    [joined] = watch.look().joined
    assert (joined.kafka.topic, joined.clickhouse.table) == ("s.p.a", "other")
    assert (watch.look().left, watch.look().left) == ((), ())


def test_settings_of_running_streams_that_change_with_it_are_named(path):
    broker = Broker("s.p.odd", "s.p.b", "s.p.c")
    watch = broker.watch(path)
    watch.look()
    broker.topics |= {"s.p.a"}
    watch.look()
    other = "  - match: s\\.p\\.a\n    clickhouse: {table: other}\n"
    path.write_text(JOB + other + "  - match: s\\.p\\.[bc]\n    trigger_interval: 5s\n")
    [note] = watch.look().notes
    assert "s.p.b:shop.b, s.p.c:shop.c. They keep the old settings" in note
    assert watch.look().notes == ()
    broker.topics |= {"s.p.other"}
    assert watch.look().refused.keys() == {"s.p.other"}
    path.write_text(path.read_text() + "  - match: s\\.p\\.other\n    skip: true\n")
    assert watch.look().notes == (), "only the refused topic has other settings"


def test_topics_and_ledgers_are_asked_once_a_look_though_topics_are_refused(path):
    broker = Broker("s.p.a", "s.p.odd", "s.p.b")
    asked: list[str] = []

    def known() -> set[tuple[str, str]]:
        asked.append("ledger")
        return broker.known

    def existing(_job: Job) -> set[str]:
        asked.append("topics")
        return broker.topics

    def expanded(jobs: Sequence[Job], taken: Collection[Config]) -> Expansion:
        return expand(jobs, existing, broker.look, taken=taken, known=known)

    watch = TopicWatch(
        [load_job(path, (), {})], expand=expanded, empty=broker.without_events, reload=lambda: [load_job(path, (), {})]
    )
    for _ in range(3):
        asked.clear()
        watch.look()
        assert asked == ["topics", "ledger"]


def test_a_refused_topic_that_the_file_skips_by_now_is_settled(path):
    broker = Broker("s.p.odd")
    watch = broker.watch(path)
    watch.look()
    broker.topics |= {"s.p.a"}
    watch.look()
    path.write_text(JOB + "  - match: s\\.p\\.a\n    skip: true\n")
    assert watch.look().settled == ("s.p.a",)
    assert watch.look().joined == ()


def test_files_that_would_change_running_streams_are_not_taken_up(path):
    broker = Broker("s.p.odd", "s.p.c")
    watch = broker.watch(path)
    watch.look()
    broker.topics |= {"s.p.a"}
    watch.look()
    path.write_text(JOB.replace("{table: a}", "{table: odd}").replace("s\\.p\\..*", "s\\.p\\.(a|odd)"))
    found = watch.look()
    assert (found.settled, found.left, watch.look().left) == ((), (), ())


def test_of_two_topics_for_one_table_the_one_that_was_read_before_keeps_it(path):
    """And a job that is started again runs on without the other one; one that never ran does not start."""
    broker = Broker("s.p.a", "s.p.odd")
    log = logging.getLogger("test")
    with pytest.raises(ConfigError, match=r"would both be written to shop\.a"):
        broker.watch(path).first(log)
    for first, second in (("s.p.odd", "s.p.a"), ("s.p.a", "s.p.odd")):
        broker.known = {(first, "")}
        watch = broker.watch(path)
        assert topics(watch.first(log)) == [first]
        assert watch.refused.keys() == {second}


def test_a_topic_that_cannot_be_looked_at_for_now_is_looked_at_again(path):
    path.write_text(JOB.replace('table: "{table}"', 'table: "{database}_{table}"'))
    broker = Broker("s.p.b", "s.p.c")
    broker.unreachable = {"s.p.b"}
    watch = broker.watch(path)
    found = watch.look()
    assert (found.refused, watch.refused) == ({}, {})
    assert any("s.p.b could not be inspected: no broker answers" in note for note in found.notes)


def test_the_status_of_a_refused_topic_is_that_of_a_stopped_stream():
    [seen] = refused_statuses({"s.p.a": ConfigError("no place", hint="make one")})
    shown = seen.as_json()
    assert {k: shown[k] for k in ("stream", "topic", "state", "error", "next", "lag")} == {
        "stream": "s.p.a",
        "topic": "s.p.a",
        "state": "stopped",
        "error": "no place",
        "next": "make one",
        "lag": None,
    }


def test_only_the_streams_that_are_meant_join(path):
    broker = Broker("s.p.a", "s.p.b")
    watch = broker.watch(path, lambda config: config.clickhouse.table == "b")
    assert topics(watch.look().joined) == ["s.p.b"]
