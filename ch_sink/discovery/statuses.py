"""The status of streams: what their ledgers and topics say now; topics that cannot be streams show as stopped. And what
``check`` says of a stream's progress.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial

from ch_sink.clickhouse import ClickHouseTableAdmin, Client
from ch_sink.config import Config, Job
from ch_sink.discovery.wiring import (
    client_of,
    kafka_settings,
    ledger_of,
    open_letters,
    states_by_ledger,
    topic_offsets,
)
from ch_sink.errors import REFILL, BrokerUnavailable, ChSinkError, DataLoss, KafkaError, StreamFailed
from ch_sink.kafka import KafkaSettings
from ch_sink.model.values import TopicState
from ch_sink.observe.stream import Standing, StreamStatus, earlier_topics, partitions_of, worst_first
from ch_sink.pipeline.target import Target
from ch_sink.ports import Compared, FinishedRange, Ledger, PartitionTotals
from ch_sink.stream.batch_plan import expect_end_still, expect_same_topic
from ch_sink.stream.claims import expect_same_terms
from ch_sink.stream.error_limits import ErrorLimits, ErrorWatch
from ch_sink.stream.rollback import expect_complete, expect_entered, expect_same_table
from ch_sink.stream.standing import seen_from_outside
from ch_sink.table.checks import Finding
from ch_sink.table.model import TargetTable


def stand_in(jobs: Sequence[Job], topic: str) -> Config:
    """A configuration for a topic that has none of its own: that of its file, with the topic as the stream's name."""
    mine = (job for job in jobs if job.topics is not None and job.topics.among([topic]))
    usual = next(mine, jobs[0]).usual
    kafka = usual.kafka.model_copy(update={"topic": topic})
    return usual.model_copy(update={"kafka": kafka, "stream": topic})


def refused_statuses(refused: Mapping[str, ChSinkError]) -> list[StreamStatus]:
    """The status of each such topic. It has no ledger: why it is refused is found again by each look."""
    return [
        StreamStatus(
            topic,
            topic,
            None,
            "",
            (),
            reachable=False,
            standing=Standing("stopped", 0.0, error.message, error.hint or ""),
        )
        for topic, error in sorted(refused.items())
    ]


_AT_ONCE = 8
"""Streams whose ledgers are read at the same time."""


def statuses(configs: Sequence[Config], warn: Callable[[str], None]) -> list[StreamStatus]:
    """The status of each stream, the worst first. A broker that does not answer is a warning.

    Raises ClickHouseError if a ledger cannot be read.
    """
    if not configs:
        return []
    standings: dict[str, Standing] = {}
    compared: dict[str, Compared | None] = {}
    for states, streams in states_by_ledger(configs):
        found = states.read([config.stream_name for config in streams])
        standings |= {name: seen_from_outside(recorded) for name, recorded in found.items()}
        compared |= {name: recorded.compared for name, recorded in found.items()}
    ledgers = [ledger_of(config, client_of(config)) for config in configs]
    with ThreadPoolExecutor(min(_AT_ONCE, len(configs))) as pool:
        # Before the broker is asked: a ledger that is missing is said at once, not once a broker has not answered.
        stored = list(pool.map(lambda ledger: (ledger.totals(), ledger.history(1)), ledgers))
        topics = topic_states(configs, warn)
        seen = pool.map(
            lambda c, ledger, found: _status(
                c, ledger, found, topics.get(c.stream_name), standings[c.stream_name], compared[c.stream_name]
            ),
            configs,
            ledgers,
            stored,
        )
        return worst_first(seen)


def _status(
    config: Config,
    ledger: Ledger,
    stored: tuple[list[PartitionTotals], list[FinishedRange]],
    topic: TopicState | None,
    standing: Standing,
    compared: Compared | None,
) -> StreamStatus:
    totals, last = stored
    topic_id = topic.topic_id if topic is not None else last[0].topic_id if last else None
    letters = open_letters(config, client_of(config))
    newest = last[0] if last else None
    watermarks = None if topic is None else {p: (low, topic.high[p]) for p, low in topic.low.items()}
    progress = ledger.progress(topic_id) if topic_id is not None else {}
    return StreamStatus(
        config.stream_name,
        config.kafka.topic,
        topic_id,
        f"{config.clickhouse.database}.{config.clickhouse.table}",
        partitions_of(totals, topic_id, watermarks, progress),
        letters,
        earlier_topics(totals, topic_id),
        last_batch=None
        if newest is None
        else {
            "run_id": newest.run_id,
            "finished": datetime.fromtimestamp(newest.finished, UTC).isoformat(timespec="milliseconds"),
        },
        reachable=topic is not None,
        time=time.time(),
        standing=standing,
        compared=compared,
    )


def topic_states(configs: Sequence[Config], warn: Callable[[str], None]) -> dict[str, TopicState]:
    """Stream → the state of its topic, where the broker knows it; of others ``warn`` gets why the lag is unknown."""
    clusters: dict[KafkaSettings, list[Config]] = {}
    for config in configs:
        clusters.setdefault(kafka_settings(config), []).append(config)
    found: dict[str, TopicState] = {}
    for streams in clusters.values():
        with topic_offsets(streams[0]) as offsets:
            for config in streams:
                try:
                    found[config.stream_name] = offsets.state(config.kafka.topic)
                except BrokerUnavailable as error:
                    warn(f"{error}; the lag is unknown")
                    break
                except KafkaError as error:
                    warn(f"{error}; the lag is unknown")
    return found


def progress_findings(
    config: Config, client: Client, topic: TopicState | None, table: TargetTable
) -> Iterator[Finding]:
    """The stream's progress: columns that it has filled otherwise, and offsets that no longer exist."""
    ledger, policy = ledger_of(config, client), config.policy()
    try:
        known = ledger.topic_ids()
        progress = ledger.progress(topic.topic_id) if topic else {}
        last = expect_same_terms(config.stream_name, ledger, table, policy, config.source_table)
    except StreamFailed as error:
        yield Finding("fail", "columns", str(error), error.hint)
        return
    except ChSinkError:
        # The ledger's table does not exist, which is already a finding.
        return
    try:
        place = config.clickhouse
        admin = ClickHouseTableAdmin(client, place.database, place.table, policy)
        expect_same_table(last, ledger, admin, table, policy)
        expect_entered(table, ledger)
        if topic is not None and topic.topic_id in known:
            expect_complete(ledger, admin, Target.of(table, policy), topic.topic_id, len(topic.low))
    except ChSinkError as error:
        yield Finding("fail", "table", str(error), error.hint)
    yield from _limits(config, client, ledger, topic, progress)
    gone = {p: topic.low[p] - offset for p, offset in progress.items() if topic and topic.low.get(p, 0) > offset}
    stops = config.on_data_loss == "fail"
    for partition, count in gone.items():
        yield Finding(
            "fail" if stops else "warn",
            "offsets",
            f"partition {partition}: {count} offsets were dropped by the broker before they were read",
            f"{REFILL}, or set on_data_loss: continue to skip them." if stops else f"{REFILL}.",
        )


def _asked_again(config: Config) -> TopicState:
    with topic_offsets(config) as offsets:
        return offsets.state(config.kafka.topic)


def _limits(
    config: Config, client: Client, ledger: Ledger, topic: TopicState | None, progress: Mapping[int, int]
) -> Iterator[Finding]:
    """Another topic, an end that the topic has lost, and more dead letters than the file accepts."""
    try:
        if topic is not None:
            expect_same_topic(ledger, topic)
            expect_end_still(topic, progress, partial(_asked_again, config))
        ErrorWatch(ErrorLimits(config.errors.max), lambda: sum(open_letters(config, client).values())).expect_few()
    except (DataLoss, StreamFailed) as error:
        yield Finding("fail", "offsets" if isinstance(error, DataLoss) else "dead letters", str(error), error.hint)
    except ChSinkError:
        return  # a server does not answer, or the table of dead letters does not exist: already a finding
