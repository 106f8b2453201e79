"""The streams of a running job and their configurations: those of the start, and those that join or are resumed."""

import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ch_sink.clickhouse import write_together
from ch_sink.config import Config
from ch_sink.discovery.init_plan import create_tables
from ch_sink.discovery.topic_watch import TopicWatch
from ch_sink.discovery.wiring import client_of, kafka_settings
from ch_sink.errors import ChSinkError
from ch_sink.observe.job_view import JobWatch, Live
from ch_sink.observe.stream import StreamSummary
from ch_sink.stream.coordinator import Coordinator
from ch_sink.stream.job import Job, JobOptions
from ch_sink.stream.job_stream import JobStream, Pace
from ch_sink.stream.lanes import Changed, ThreadLanes
from ch_sink.stream.pace import Flush
from ch_sink.stream.roster import Roster
from ch_sink.stream.standing import Member
from ch_sink.stream.tasks import ExecuteWithin
from ch_sink.wiring.process import allow_descriptors
from ch_sink.wiring.streams import SharedTopics, members_of, stream_ports, stream_settings

log = logging.getLogger("ch_sink")

_FRESH = 2.0
"""Seconds for which what was read counts as new."""


@dataclass(frozen=True, slots=True)
class Observers:
    """The observers of a job."""

    on_batch: Callable[[StreamSummary], None] | None = None
    """Receives each stream's figures after each of its batches."""
    watch: JobWatch = field(default_factory=JobWatch)
    """Gets the job's pictures while it runs."""
    live: Live = field(default_factory=Live)
    """Is kept up to date with what the streams do; the metrics are served from it."""

    def batch(self, summary: StreamSummary) -> None:
        """A batch has ended."""
        self.live.batch(summary)
        if self.on_batch is not None:
            self.on_batch(summary)


class Crew:
    """Makes the job's streams, those of the start and those that join."""

    def __init__(
        self, added: Callable[[Config], None], brokers: SharedTopics, topics: TopicWatch | None, seen: Observers
    ) -> None:
        """
        Args:
            added: is called with each configuration of which tasks may come.
            topics: finds the topics that come and go.
        """
        self._added, self._brokers, self._topics, self._seen = added, brokers, topics, seen
        self._configurations = Configurations((), topics.now if topics is not None else None, self._changed)
        self._roster: Roster | None = None
        self.made = 0
        """How many streams it has made."""

    def job(self, configs: Sequence[Config], execute: ExecuteWithin, options: JobOptions) -> Job:
        """The job of these streams. Raises ConfigError if the process may not have enough open files for them."""
        topics = self._topics
        options = replace(
            options,
            on_resume=lambda stream: self._configurations.outdated(stream.name),
            discover=self._discover if topics is not None and topics.open else None,
            discover_every=topics.interval if topics is not None else math.inf,
        )
        refused = self._refused(topics.refused if topics is not None else {})
        streams = [*map(self.stream, configs), *(stream for stream, _ in refused)]
        lanes = ThreadLanes()
        members = [*members_of(configs), *(member for _, member in refused)]
        self._roster = Roster(members, uuid.uuid4().hex[:12], steady=lanes.now)
        return Job(streams, execute, lanes, options, self._roster, write_together)

    def _changed(self, config: Config) -> None:
        self._added(config)
        if self._roster is not None:
            self._roster.configured(config.stream_name, config.fingerprint())

    def stream(self, config: Config) -> JobStream:
        """A stream of the job. Raises ConfigError if the process may not have enough open files for it."""
        self.made += 1
        allow_descriptors(self.made)
        self._added(config)
        self._configurations.add(config)
        return JobStream(
            stream_settings(config),
            lambda: self._connect(config.stream_name),
            self._brokers.watermarks(kafka_settings(config)),
            Pace(config.trigger_interval, Flush(config.flush_interval, config.flush_rows)),
            config.max_offsets_per_trigger,
            comes_and_goes=self._topics is not None and self._topics.finds(config),
            table=_table(config),
            server=config.clickhouse.url,
        )

    def _connect(self, name: str) -> Coordinator:
        config = self._configurations.of(name)
        if config.create_tables:
            create_tables(config)
        ports = stream_ports(config, self._brokers)
        self._seen.live.server_version = client_of(config).server_version
        return Coordinator(stream_settings(config), ports, self._seen.batch)

    def _discover(self) -> Changed:
        """The streams that join and leave."""
        assert self._topics is not None
        try:
            found = self._topics.look()
            joined = [(self.stream(config), members_of([config])[0]) for config in found.joined]
            why = self._topics.refused
            joined += self._refused({topic: why[topic] for topic in found.refused})
        except ChSinkError as error:
            log.warning("topics could not be inspected: %s", error)
            return Changed()
        found.say(log)
        for stream, _ in joined[: len(found.joined)]:
            log.warning("%s joins the job", stream.name, extra={"stream": stream.name})
        return Changed(joined, found.left, found.settled)

    def _refused(self, topics: Mapping[str, tuple[Config, ChSinkError]]) -> list[tuple[JobStream, Member]]:
        """Stopped streams that show why these topics are none of the job."""

        def shown_by(config: Config, error: ChSinkError) -> JobStream:
            def connect() -> Coordinator:
                raise error

            watermarks = self._brokers.watermarks(kafka_settings(config))
            return JobStream(stream_settings(config), connect, watermarks, table=_table(config))

        return [(shown_by(config, error), Member(topic, None, known=True)) for topic, (config, error) in topics.items()]


def _table(config: Config) -> str:
    return f"{config.clickhouse.database}.{config.clickhouse.table}"


class Configurations:
    """The configuration of each stream, by name. Safe for several threads."""

    def __init__(
        self,
        configs: Iterable[Config],
        reload: Callable[[], Iterable[Config]] | None = None,
        changed: Callable[[Config], None] = lambda _: None,
    ) -> None:
        """
        Args:
            reload: reads the files again; None if there are none. Raises ChSinkError.
            changed: receives each configuration that has changed.
        """
        self._current = {config.stream_name: config for config in configs}
        self._reload, self._changed = reload, changed
        self._stale: set[str] = set()
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._read: tuple[float, dict[str, Config]] = (-math.inf, {})

    def add(self, config: Config) -> None:
        """A stream that joins the job."""
        with self._lock:
            self._current[config.stream_name] = config

    def outdated(self, name: str) -> None:
        """The stream was resumed: its file may have been changed before."""
        with self._lock:
            self._stale.add(name)

    def of(self, name: str) -> Config:
        """The configuration of a stream, read again if it is outdated. A file that is wrong by now changes nothing."""
        with self._lock:
            stale = name in self._stale and self._reload is not None
            self._stale.discard(name)
            current = self._current[name]
        if not stale or self._reload is None:
            return current
        try:
            found = self._again(self._reload).get(name, current)
        except ChSinkError as error:
            log.warning("%s keeps its current configuration: %s", name, error, extra={"stream": name})
            return current
        if found != current:
            with self._lock:
                self._current[name] = found
            log.warning("%s has a new configuration", name, extra={"stream": name})
            self._changed(found)
        return found

    def _again(self, reload: Callable[[], Iterable[Config]]) -> dict[str, Config]:
        """The files now; streams that are resumed together share one look."""
        with self._reading:
            if time.monotonic() - self._read[0] >= _FRESH:
                self._read = (time.monotonic(), {config.stream_name: config for config in reload()})
            return self._read[1]
