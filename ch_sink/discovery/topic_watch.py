"""Topics that come and go while a job runs: which streams join it, and which leave."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ch_sink.config import Config, Expansion, Job
from ch_sink.discovery.job_topics import ReadBefore, TablesOfTopics, existing_tables, recorded_streams, streams_of
from ch_sink.discovery.statuses import stand_in, topic_states
from ch_sink.discovery.wiring import client_of
from ch_sink.errors import ChSinkError, ClickHouseUnavailable, ConfigError, KafkaError, in_one_line

log = logging.getLogger("ch_sink")

_NAMED = 10
"""Streams that a note names."""
_GONE = 2
"""Looks in succession in which a topic is missing before its stream leaves: brokers that restart may list fewer."""


@dataclass(frozen=True, slots=True)
class TopicChanges:
    """Changes of the topics between two looks."""

    joined: tuple[Config, ...] = ()
    left: tuple[str, ...] = ()
    """Names of the streams whose topics are gone."""
    notes: tuple[str, ...] = ()
    """Notes about topics, each of which is logged once."""
    refused: dict[str, ChSinkError] = field(default_factory=dict)
    """Topics that cannot be streams of this job, each once."""
    settled: tuple[str, ...] = ()
    """Topics that are refused no longer, or gone. A stream of theirs joins with the next look."""

    def say(self, log: logging.Logger) -> None:
        """Log the notes that are new."""
        for note in self.notes:
            log.warning("%s", note)
        for topic, error in self.refused.items():
            log.error("topic %s is refused: %s", topic, in_one_line(str(error), error.hint and f"Next: {error.hint}"))
        for topic in self.settled:
            log.warning("topic %s is accepted again", topic)


class TopicWatch:
    """Looks at the topics of a job's files. Used by one thread at a time."""

    def __init__(
        self,
        jobs: Sequence[Job],
        wanted: Callable[[Config], bool] = lambda _: True,
        *,
        expand: Callable[[Sequence[Job], Collection[Config]], Expansion] | None = None,
        empty: Callable[[Sequence[Config]], Collection[str]] | None = None,
        reload: Callable[[], Sequence[Job]] | None = None,
        begun: Callable[[Iterable[Config]], Collection[str]] = recorded_streams,
    ) -> None:
        """
        Args:
            wanted: what ``--only`` means.
            expand, empty: look elsewhere than at the brokers.
            reload: reads the files again, while topics are refused. Raises ConfigError.
            begun: the names of streams that have begun to read, of the ledgers of these.
        """
        self._jobs, self._wanted = jobs, wanted
        tables, known = TablesOfTopics(), ReadBefore()
        self._expand = expand or (lambda jobs, taken: streams_of(jobs, taken=taken, look=tables, known=known))
        self._empty = empty or without_events
        self._streams: dict[str, Config] = {}
        self._missing: dict[str, int] = {}
        self._said: set[str] = set()
        self._reload = reload
        self._refused: dict[str, ChSinkError] = {}
        self._ran_before = False
        self._begun, self._looked = begun, False
        self._late: set[str] = set()
        """Streams that have come since their file began."""

    @property
    def refused(self) -> dict[str, tuple[Config, ChSinkError]]:
        """The topics that the last look refused: a configuration to show each by, and why."""
        return {topic: (stand_in(self._jobs, topic), error) for topic, error in self._refused.items()}

    @property
    def open(self) -> bool:
        """Whether streams may join: of new topics, or of topics whose first event their table waits for."""
        return any(job.topics is not None or job.usual.create_tables for job in self._jobs)

    @property
    def interval(self) -> float:
        """Seconds from one look to the next."""
        return min((job.usual.discovery_interval for job in self._jobs), default=30.0)

    @property
    def usual(self) -> tuple[Config, ...]:
        """The configurations of topics without exceptions, one of each file."""
        return tuple(job.usual for job in self._jobs)

    def now(self) -> Sequence[Config]:
        """The streams of the files as they are now, for one that is resumed. Raises ChSinkError."""
        found = streams_of(self._reload() if self._reload is not None else self._jobs).streams
        return [self._beginning(config) for config in found]

    def finds(self, config: Config) -> bool:
        """Whether the stream is of a file of many topics, so that it leaves when its topic is deleted."""
        mine = (job for job in self._jobs if job.topics is not None)
        return any(job.topics is not None and job.topics.among([config.kafka.topic]) for job in mine)

    def first(self, log: logging.Logger, *, wait: bool = True) -> tuple[Config, ...]:
        """The streams at the start; logs notes. ``wait``: servers that do not answer are asked again later.

        A job that never ran refuses to start if a topic has no place of its own. One that is started again does not
        leave its tables behind because of a topic that has come since.

        Raises ConfigError, KafkaError, ClickHouseError.
        """
        try:
            found = self.look()
        except (KafkaError, ClickHouseUnavailable) as error:
            if not (wait and error.temporary and all(job.topics is not None for job in self._jobs)):
                raise
            log.warning("topics could not be inspected and will be retried: %s", error)
            return ()
        for refusal in () if self._ran_before else found.refused.values():
            raise refusal
        found.say(log)
        return found.joined

    def look(self) -> TopicChanges:
        """The changes since the last look; the first one finds all streams. Raises KafkaError, ConfigError."""
        found = self._expand(self._jobs, list(self._streams.values()))
        if self._refused and self._reload is not None:
            found = self._again(found, self._reload)
        self._ran_before = found.ran_before
        streams = {config.stream_name: config for config in found.streams if self._wanted(config)}
        fresh = [
            config
            for name, config in streams.items()
            if name not in self._streams and (config.source_table or config.kafka.topic not in self._refused)
        ]
        empty = self._empty(fresh) if fresh else ()
        self._note_late(fresh, {config.stream_name: config for config in found.streams})
        joined = [self._beginning(config) for config in fresh if config.stream_name not in empty]
        gone = {name for name in self._streams if name not in streams}
        self._missing = {name: self._missing.get(name, 0) + 1 for name in gone}
        left = tuple(sorted(name for name, times in self._missing.items() if times >= _GONE))
        for name in left:
            del self._streams[name]
        self._streams |= {config.stream_name: config for config in joined}
        waiting = [*found.empty, *(c.kafka.topic for c in fresh if c.stream_name in empty)]
        notes = [
            *found.notes,
            *(f"topic {topic} has no event yet; it joins the job with its first event" for topic in waiting),
        ]
        for_good = {t: e for t, e in found.refused.items() if not e.temporary and self._wanted(stand_in(self._jobs, t))}
        notes += [f"topic {t} could not be inspected: {e}" for t, e in found.refused.items() if e.temporary]
        refused = {topic: error for topic, error in for_good.items() if topic not in self._refused}
        settled = tuple(sorted(self._refused.keys() - for_good.keys()))
        self._refused = {topic: self._refused.get(topic, error) for topic, error in for_good.items()}
        return TopicChanges(tuple(joined), left, tuple(n for n in notes if self._first(n)), refused, settled)

    def _note_late(self, fresh: Sequence[Config], streams: Mapping[str, Config]) -> None:
        """Note the streams that came after their file began: `start: latest` would skip the first events of these.

        A file begins with the first look that finds its topics, or did so if a stream of it has begun to read.
        """
        latest = {config.stream_name for config in fresh if config.start == "latest"}
        if latest and (self._looked or len(streams) > 1):
            begun = self._begun(streams.values())
            files = {self._file_of(config) for name, config in streams.items() if name in begun}
            late = {name for name in latest if self._looked or self._file_of(streams[name]) in files}
            self._late |= late - set(begun)
        self._looked = True

    def _file_of(self, config: Config) -> int:
        """The number of the stream's file."""
        return next((n for n, job in enumerate(self._jobs) if _said_of([job], config) is not None), -1)

    def _beginning(self, config: Config) -> Config:
        """The stream's configuration, with where it begins."""
        return config.model_copy(update={"start": "earliest"}) if config.stream_name in self._late else config

    def _again(self, found: Expansion, reload: Callable[[], Sequence[Job]]) -> Expansion:
        """The files expanded again, if that settles a refused topic and leaves every stream of the job as it is."""
        try:
            jobs = reload()
        except ConfigError:
            return found  # it is being written
        if jobs == self._jobs:
            return found
        now = self._expand(jobs, list(self._streams.values()))
        stays = {config.stream_name for config in found.streams} & self._streams.keys()
        if now.refused.keys() >= self._refused.keys() or not stays <= {config.stream_name for config in now.streams}:
            return found
        former, self._jobs = self._jobs, jobs
        if kept := self._otherwise(former, jobs):
            note = (
                f"the settings of running streams have changed in the file: {', '.join(kept[:_NAMED])}"
                f"{f' and {len(kept) - _NAMED} others' if len(kept) > _NAMED else ''}. They keep the old "
                "settings until the job is restarted, or they are paused and resumed"
            )
            now = replace(now, notes=(*now.notes, note))
        return now

    def _otherwise(self, former: Sequence[Job], jobs: Sequence[Job]) -> list[str]:
        """The running streams of which files say something else than before."""
        pairs = [(_said_of(former, config), _said_of(jobs, config)) for config in self._streams.values()]
        return [
            name
            for name, (before, now) in zip(self._streams, pairs, strict=True)
            if before is not now and before != now
        ]

    def _first(self, text: str) -> bool:
        """Whether this has not been said yet."""
        new = text not in self._said
        self._said.add(text)
        return new


def _said_of(jobs: Sequence[Job], config: Config) -> Config | None:
    """A stream's settings as the files state them; names are templates."""
    topic, brokers = config.kafka.topic, config.kafka.bootstrap
    for job in jobs:
        has = job.topics.among([topic]) if job.topics is not None else job.usual.kafka.topic == topic
        if has and job.usual.kafka.bootstrap == brokers:
            return job.variant(topic).config
    return None


def without_events(configs: Sequence[Config]) -> set[str]:
    """Streams without a table, which is created from their first events once these arrive.

    A ClickHouse that does not answer does not leave a stream out: opening the stream waits for it.
    """
    places: dict[tuple[str, str], list[Config]] = {}
    for config in configs:
        if config.create_tables:
            places.setdefault((config.clickhouse.url, config.clickhouse.database), []).append(config)
    found: set[str] = set()
    for (_, database), streams in places.items():
        try:
            there = existing_tables(client_of(streams[0]), database, {c.clickhouse.table for c in streams})
        except ChSinkError:
            continue
        topics = topic_states([config for config in streams if config.clickhouse.table not in there], log.debug)
        found |= {name for name, topic in topics.items() if topic.high == topic.low}
    return found
