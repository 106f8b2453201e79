"""From the files of a job and the topics that exist to one configuration for each stream. No I/O."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field

from ch_sink.config.job import Job
from ch_sink.config.model import Config
from ch_sink.errors import ChSinkError, ConfigError
from ch_sink.model.values import SourceTable
from ch_sink.table.spec import EngineChoice
from ch_sink.table.views import CURRENT, MOMENTS

Look = Callable[[Config, str], Collection[SourceTable]]
"""The source tables of a topic's events, a nameless one for events that state none; nothing if it holds no event.

Raises ChSinkError."""


@dataclass(frozen=True, slots=True)
class Expansion:
    """The streams of a job, and notes about the other topics."""

    streams: tuple[Config, ...] = ()
    skipped: tuple[str, ...] = ()
    """Topics that an exception skips."""
    empty: tuple[str, ...] = ()
    """Topics whose stream cannot be named before they hold an event."""
    refused: dict[str, ChSinkError] = field(default_factory=dict)
    """Topics that cannot be streams of this job, with the reason."""
    notes: tuple[str, ...] = ()
    """Notes for the user: patterns and exceptions that match nothing."""
    ran_before: bool = False
    """Some of the streams have read something, in this job or an earlier one. Only known if topics are refused."""

    def expect_sound(self) -> None:
        """Raise the error of the first topic that is refused."""
        for error in self.refused.values():
            raise error


def expand(
    jobs: Sequence[Job],
    existing: Callable[[Job], Collection[str]],
    look: Look,
    *,
    taken: Iterable[Config] = (),
    known: Callable[[], Collection[tuple[str, str]]] = frozenset,
    only_topic: str = "",
) -> Expansion:
    """The streams of these files. Raises ConfigError if two files of one topic each name the same stream.

    Args:
        existing: the topics of a file's brokers; not asked for a file of one topic.
        taken: streams that run already; a topic of theirs keeps its stream, and their tables are not given again.
        only_topic: the only topic to look into; empty for all.
        known: the topics that were read before, each with the source table of a stream, empty for all; their tables are
            not given to others. Asked if topics are refused.
    """
    _expect_own_names(jobs)
    taken = list(taken)
    found = _Streams(look, {(c.kafka.bootstrap, c.kafka.topic): c for c in taken}, {c.stream_name: c for c in taken})
    notes: list[str] = []
    for job in jobs:
        if job.topics is None:
            found.streams.append(_Found(job, job.only()))
            continue
        topics = existing(job)
        mine = job.topics.among(topics if not only_topic else {only_topic}.intersection(topics))
        notes += _notes(job, mine, topics) if not only_topic else []
        for topic in mine:
            found.add(job, topic)
    sound, clashes = _without_clashes(found.streams, found.by_name, ())
    read_before: Collection[tuple[str, str]] = ()
    if clashes or found.refused:
        # Of two topics or source tables for one table, the one that was read keeps it.
        read_before = known()
        sound, clashes = _without_clashes(found.streams, found.by_name, read_before)
    topics_before = {topic for topic, _ in read_before}
    ran_before = bool(taken) or any(config.kafka.topic in topics_before for config in sound)
    refused = found.refused | clashes
    return Expansion(tuple(sound), tuple(found.skipped), tuple(found.empty), refused, tuple(notes), ran_before)


def _expect_own_names(jobs: Sequence[Job]) -> None:
    """Files of one topic each say so themselves if they share a stream's name: no topic that came is to blame."""
    by_name: dict[str, _Found] = {}
    for job in jobs:
        if job.topics is None:
            found = _Found(job, job.only())
            if (other := by_name.setdefault(found.config.stream_name, found)) is not found:
                raise _same_name(other, found)


def _notes(job: Job, mine: Sequence[str], existing: Collection[str]) -> list[str]:
    assert job.topics is not None
    notes = []
    missing = job.topics.missing(existing)
    if not mine:
        notes.append(f"{job.name}: no topic matches {job.topics.text} yet; new topics are looked for while a job runs")
    elif missing:
        notes.append(f"{job.name}: these topics do not exist yet: {', '.join(missing)}")
    reached = {id(job.variant(topic)) for topic in mine}
    for variant in job.variants[:-1] if mine else ():
        assert variant.match is not None
        if id(variant) not in reached:
            behind = any(variant.match.fullmatch(topic) for topic in mine)
            why = "only topics that an earlier exception matches" if behind else "no topic"
            notes.append(f"{job.name} {variant.place}: the exception {variant.match.pattern} matches {why}")
    return notes


@dataclass(frozen=True, slots=True)
class _Found:
    """A stream and the file that it comes from."""

    job: Job
    config: Config


@dataclass(slots=True)
class _Streams:
    """The known streams of topics, and the topics without one."""

    look: Look
    running: Mapping[tuple[str, str], Config]
    """Brokers and topic → a stream that runs already."""
    by_name: Mapping[str, Config]
    streams: list[_Found] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    refused: dict[str, ChSinkError] = field(default_factory=dict)

    def add(self, job: Job, topic: str) -> None:
        """Add the streams of a topic."""
        has = self.running.get((job.usual.kafka.bootstrap, topic))
        variant = job.variant(topic)
        if variant.skip:
            self.skipped.append(topic)
        elif has is not None and not variant.splits(topic):
            self.streams.append(_Found(job, has))
        elif not variant.needs_event(topic):
            self.streams.append(_Found(job, variant.bind(topic)))
        else:
            try:
                sources = sorted(self.look(variant.config, topic), key=astuple)
            except ChSinkError as error:
                self.refused[topic] = error
                return
            if not sources:
                self.empty.append(topic)
            for source in sources if variant.splits(topic) else sources[:1]:
                try:
                    config = variant.bind(topic, source)
                except ChSinkError as error:
                    self.refused[topic] = error
                else:
                    mine = self.by_name.get(config.stream_name, config)
                    self.streams.append(_Found(job, mine if mine.source_table == config.source_table else config))


def _without_clashes(
    streams: Sequence[_Found], running: Mapping[str, Config], known: Collection[tuple[str, str]]
) -> tuple[list[Config], dict[str, ChSinkError]]:
    """The streams without those that would share a name, a topic's group or, unless they say so, a table.

    A running one stays, and one that was read before; otherwise the first one. Also the topics of the others, with the
    reason.
    """
    topics = {topic for topic, _ in known}

    def place_of(number: int) -> tuple[bool, bool, bool]:
        config = streams[number].config
        topic, source = config.kafka.topic, config.source_table
        runs = (mine := running.get(config.stream_name)) is not None and mine.source_table == source
        return not runs, topic not in topics, (topic, source) not in known

    by_table: dict[tuple[str, str, str], list[_Found]] = {}
    by_name: dict[str, _Found] = {}
    by_group: dict[tuple[str, str, str], Config] = {}
    out: dict[int, Config] = {}
    refused: dict[str, ChSinkError] = {}
    for place in sorted(range(len(streams)), key=place_of):
        found = streams[place]
        config, target = found.config, found.config.clickhouse
        sharing = by_table.setdefault((target.url, target.database, target.table), [])
        other = by_name.get(config.stream_name)
        group = config.kafka.bootstrap, config.kafka.topic, config.consumer_group
        error = _same_name(other, found) if other is not None else _clash(found, sharing)
        error = error or _named_like_a_view(found, by_table)
        if error is None and group in by_group:
            error = _same_group(by_group[group], config)
        if error is not None:
            refused[config.kafka.topic] = error
            continue
        sharing.append(found)
        by_group[group] = config
        by_name[config.stream_name] = found
        out[place] = config
    return [out[place] for place in sorted(out)], refused


def _same_name(first: _Found, second: _Found) -> ConfigError:
    name, topic = second.config.stream_name, second.config.kafka.topic
    if first.config.source_table != second.config.source_table:
        place = second.config.clickhouse
        return ConfigError(
            f"source tables {first.config.source_table} and {second.config.source_table} of topic {topic} would both "
            f"be written to {place.database}.{place.table}",
            hint='Let clickhouse.table name the schema too, as in "{schema}_{table}".',
        )
    if first.config.kafka.topic == second.config.kafka.topic and first.job is not second.job:
        return ConfigError(
            f"{first.job.name} and {second.job.name} have the same stream name, {name}",
            hint="A topic belongs to one file of a job; two streams of one topic need names of their own.",
        )
    return ConfigError(
        f"topics {first.config.kafka.topic} and {second.config.kafka.topic} have the same stream name, {name}",
        hint='Leave `stream` out, or make it a template such as "{topic}".',
    )


def _same_group(first: Config, second: Config) -> ConfigError:
    """Each would take the other's offsets for its own, and believe that ClickHouse was taken back."""
    return ConfigError(
        f"streams {first.stream_name} and {second.stream_name} read topic {second.kafka.topic} with the same consumer "
        f"group, {second.consumer_group}",
        hint="Leave kafka.group.id out, or give each stream its own.",
    )


def _named_like_a_view(found: _Found, by_table: Mapping[tuple[str, str, str], Sequence[_Found]]) -> ConfigError | None:
    """Why a stream cannot have its table beside those of others: one would have the name of a view of another."""
    place = found.config.clickhouse
    for end in (CURRENT, *MOMENTS):
        pairs = [(found, other) for other in by_table.get((place.url, place.database, place.table + end), ())]
        if (table := place.table.removesuffix(end)) != place.table:
            pairs += [(other, found) for other in by_table.get((place.url, place.database, table), ())]
        for viewed, named in pairs:
            if end == CURRENT or EngineChoice.parse(viewed.config.engine or "replacing") is EngineChoice.APPEND:
                return ConfigError(
                    f"{place.database}.{named.config.clickhouse.table}, the table of topic {named.config.kafka.topic}, "
                    f"has the name of a view of {viewed.config.clickhouse.table}, the table of topic "
                    f"{viewed.config.kafka.topic}",
                    hint="Give one of the tables another name, by an exception under `tables:`.",
                )
    return None


def _clash(found: _Found, sharing: Sequence[_Found]) -> ConfigError | None:
    """Why a stream cannot have the table of these others. Files of one topic each say so by naming the table."""
    config = found.config
    others = [other.config for other in sharing if found.job.topics is not None or other.job.topics is not None]
    if not others:
        return None
    first = others[0]
    table = f"{config.clickhouse.database}.{config.clickhouse.table}"
    if not (config.merge and first.merge):
        return ConfigError(
            f"topics {first.kafka.topic} and {config.kafka.topic} would both be written to {table}",
            hint="Give each its own table, by {schema} or {topic} in clickhouse.table or by an exception under "
            "`tables:`; or set merge: true, and a column distinguishes their rows.",
        )
    same = next((c for c in others if c.columns.add == config.columns.add), None)
    if same is not None:
        return ConfigError(
            f"topics {same.kafka.topic} and {config.kafka.topic} would both be written to {table}, and their added "
            "columns are the same, so nothing distinguishes their rows",
            hint="Let one of columns.add differ by topic, such as source: \"'{topic}'\".",
        )
    return None
