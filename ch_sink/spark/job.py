"""The main job: ``spark-submit job.py --config orders.yaml [--config …] [--once]``, and what ``ch_sink run`` calls."""

import argparse
import logging
import math
import os
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from ch_sink.clickhouse import write_together
from ch_sink.config import Config, load_job
from ch_sink.config import Job as JobFile
from ch_sink.discovery.init_plan import create_tables
from ch_sink.discovery.job_topics import streams_of
from ch_sink.discovery.topic_watch import TopicWatch
from ch_sink.discovery.wiring import client_of
from ch_sink.errors import ChSinkError, StreamsFailed
from ch_sink.kafka import KafkaSettings
from ch_sink.observe import StreamSummary, progress_line
from ch_sink.observe.lines import Lines
from ch_sink.observe.live import Live, LiveStream
from ch_sink.observe.logs import formatter, logging_to
from ch_sink.observe.picture import JobPicture
from ch_sink.observe.watch import JobWatch
from ch_sink.serve.serving import serving
from ch_sink.spark.application import Application
from ch_sink.spark.configurations import Configurations
from ch_sink.spark.descriptors import allow_descriptors
from ch_sink.spark.members import NoStates, members_of
from ch_sink.spark.session import JvmStart
from ch_sink.spark.stop import Stop, run_stoppable
from ch_sink.spark.wiring import SharedTopics, stream_ports, stream_settings
from ch_sink.stream.coordinator import Coordinator
from ch_sink.stream.flush import Flush
from ch_sink.stream.job import Job
from ch_sink.stream.job_stream import JobStream
from ch_sink.stream.job_work import Changed, Ended, JobOptions
from ch_sink.stream.lanes import ThreadLanes
from ch_sink.stream.roster import Member, Roster

__all__ = ["JobEnd", "main", "run_job", "run_streams"]

log = logging.getLogger("ch_sink")


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended."""

    summaries: list[StreamSummary]
    failures: Mapping[str, ChSinkError]
    """Stream → what stopped it."""

    def expect_fine(self) -> None:
        """Raise what stopped streams: the error itself if there is only one, else all of them in one."""
        different = list({id(error): error for error in self.failures.values()}.values())
        if len(different) == 1:
            raise different[0]
        if different:
            raise StreamsFailed(self.failures)


def run_streams(
    configs: Sequence[Config],
    *,
    once: bool = False,
    fail_fast: bool = False,
    master: str | None = None,
    on_batch: Callable[[StreamSummary], None] | None = None,
    started: JvmStart | None = None,
    stop: Stop | None = None,
) -> list[StreamSummary]:
    """As `run_job`; returns the summaries. Raises ChSinkError after the end if a stream failed."""
    end = run_job(configs, once=once, fail_fast=fail_fast, master=master, on_batch=on_batch, started=started, stop=stop)
    end.expect_fine()
    return end.summaries


def run_job(
    configs: Sequence[Config],
    *,
    once: bool = False,
    fail_fast: bool = False,
    master: str | None = None,
    on_batch: Callable[[StreamSummary], None] | None = None,
    watch: JobWatch | None = None,
    topics: TopicWatch | None = None,
    started: JvmStart | None = None,
    stop: Stop | None = None,
    live: Live | None = None,
    reload: Callable[[], Iterable[Config]] | None = None,
) -> JobEnd:
    """Run the streams of these configurations in one Spark application; returns when all have ended.

    A stream that fails does not end the others. Spark is only waited for when a stream is open.

    Args:
        once: end when everything that is there now has been read.
        fail_fast: end when the first stream fails.
        on_batch: receives each stream's figures after each of its batches.
        watch: gets the job's pictures while it runs.
        topics: finds the topics that come and go; its first look made ``configs``.
        started: the JVM, if it has been started for these configurations.
        stop: once requested, running batches come to their end and no further one begins.
        live: is kept up to date with what the streams do; the metrics are served from it.
        reload: reads the files again, for a stream that is resumed.

    Raises ConfigError if the metrics' address cannot be taken.
    """
    allow_descriptors(len(configs))
    stop = stop or Stop()
    live = live or Live()
    settings = list(configs) or (list(topics.usual) if topics is not None else [])
    if not settings:
        return JobEnd([], {})
    application = Application(settings, master, started, stop)

    def batch(summary: StreamSummary, live: Live = live) -> None:
        live.batch(summary)
        if on_batch is not None:
            on_batch(summary)

    address = next((config.metrics for config in settings if config.metrics), None)
    with serving(address, live), closing(application), closing(SharedTopics()) as brokers:

        def changed(config: Config) -> None:
            application.add(config)
            roster.configured(config.stream_name, config.fingerprint())

        configurations = Configurations((), reload, changed)
        crew = _Crew(application, brokers, configurations, batch, topics, live)
        options = JobOptions(
            slots=application.slots,
            once=once,
            fail_fast=fail_fast,
            stopping=lambda: stop.requested,
            abandon=application.cancel,
            # A job that ends once everything has been read need not start Spark for nothing.
            on_open=lambda _: None if once else application.start(),
            on_retry=lambda stream: live.retried(stream.name, stream.topic),
            on_resume=lambda stream: configurations.outdated(stream.name),
            discover=crew.discover if topics is not None and topics.open else None,
            discover_every=topics.interval if topics is not None else math.inf,
        )
        refused = crew.refused(topics.refused if topics is not None else {})
        streams = [*(crew.stream(config) for config in configs), *(stream for stream, _ in refused)]
        lanes: ThreadLanes[Ended] = ThreadLanes()
        members = [*members_of(configs), *(member for _, member in refused)]
        roster = Roster(members, uuid.uuid4().hex[:12], steady=lanes.now)
        job = Job(streams, application.execute, lanes, options, roster, write_together)
        if watch is not None:
            watch.source = lambda: _picture(job, application)
        live.follow(lambda: _seen(job))
        failures = job.run()
    return JobEnd([stream.summary for stream in (*job.streams, *job.left)], failures)


@dataclass(slots=True)
class _Crew:
    """Makes the job's streams, those of the start and those that join."""

    application: Application
    brokers: SharedTopics
    configurations: Configurations
    on_batch: Callable[[StreamSummary], None] | None
    topics: TopicWatch | None
    live: Live
    made: int = 0

    def stream(self, config: Config) -> JobStream:
        """A stream of the job. Raises ConfigError if the process may not have enough open files for it."""
        self.made += 1
        allow_descriptors(self.made)
        self.application.add(config)
        self.configurations.add(config)
        return JobStream(
            stream_settings(config),
            lambda: self._connect(config.stream_name),
            self.brokers.watermarks(KafkaSettings(config.kafka.client())),
            config.trigger_interval,
            config.max_offsets_per_trigger,
            Flush(config.flush_interval, config.flush_rows),
            comes_and_goes=self.topics is not None and self.topics.finds(config),
            table=_table(config),
        )

    def discover(self) -> Changed:
        """Which streams join and leave."""
        assert self.topics is not None
        try:
            found = self.topics.look()
            joined = [(self.stream(config), members_of([config])[0]) for config in found.joined]
            why = self.topics.refused
            joined += self.refused({topic: why[topic] for topic in found.refused})
        except ChSinkError as error:
            log.warning("topics could not be looked at: %s", error)
            return Changed()
        found.say(log)
        for stream, _ in joined[: len(found.joined)]:
            log.warning("%s joins the job", stream.name, extra={"stream": stream.name})
        return Changed(joined, found.left, found.settled)

    def refused(self, topics: Mapping[str, tuple[Config, ChSinkError]]) -> list[tuple[JobStream, Member]]:
        """Stopped streams that show why these topics are none of the job."""
        return [(self._refused(config, error), Member(topic, NoStates())) for topic, (config, error) in topics.items()]

    def _refused(self, config: Config, error: ChSinkError) -> JobStream:
        def connect() -> Coordinator:
            raise error

        watermarks = self.brokers.watermarks(KafkaSettings(config.kafka.client()))
        return JobStream(stream_settings(config), connect, watermarks, table=_table(config))

    def _connect(self, name: str) -> Coordinator:
        config = self.configurations.of(name)
        if config.create_tables:
            create_tables(config)
        ports = stream_ports(config, self.brokers)
        self.live.server_version = client_of(config).server_version
        return Coordinator(stream_settings(config), ports, self.on_batch)


def _picture(job: Job, application: Application) -> JobPicture:
    seen = job.picture()
    return replace(seen, doing=seen.doing or application.doing)


def _table(config: Config) -> str:
    return f"{config.clickhouse.database}.{config.clickhouse.table}"


def _seen(job: Job) -> list[LiveStream]:
    streams, comparisons = {stream.name: stream for stream in job.streams}, job.roster.comparisons()
    return [
        LiveStream(
            seen.stream,
            streams[seen.stream].topic if seen.stream in streams else "",
            # From the start on, so that no counter gets another label later: Prometheus would miss its first events.
            seen.table or (streams[seen.stream].table if seen.stream in streams else ""),
            lag=seen.lag,
            state=seen.state,
            error=seen.standing.error,
            next=seen.standing.next,
            compared=comparisons.get(seen.stream),
        )
        for seen in job.picture().streams
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry of ``spark-submit``; returns the exit code.

    0 done, 1 a stream failed, 2 wrong usage or configuration, 130 and 143 stopped by Ctrl-C or SIGTERM.
    """

    def work(stop: Stop) -> int:
        if "PYSPARK_GATEWAY_PORT" in os.environ:
            stop.with_parent()
        return _main(arguments, stop)

    return run_stoppable(work, exiting=arguments is None)


def _main(arguments: Sequence[str] | None, stop: Stop) -> int:
    parser = argparse.ArgumentParser(prog="job.py", description="Debezium change events from Kafka into ClickHouse")
    parser.add_argument(
        "--config", action="append", required=True, metavar="FILE", help="YAML file of one topic or of many"
    )
    parser.add_argument("--once", action="store_true", help="stop when everything that is there now has been read")
    parser.add_argument("--fail-fast", action="store_true", help="stop when the first stream fails")
    parser.add_argument("--master", metavar="URL", help="Spark master, where spark-submit does not say it")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides")
    given = parser.parse_args(arguments)
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(formatter("text"))
    watch = JobWatch("reading the configuration")
    try:
        with logging_to([handler], level=logging.INFO), Lines(watch.look):

            def jobs() -> list[JobFile]:
                return [load_job(path, given.overrides) for path in given.config]

            topics = TopicWatch(jobs(), reload=jobs)
            end = run_job(
                topics.first(log, wait=not given.once),
                once=given.once,
                fail_fast=given.fail_fast,
                master=given.master,
                watch=watch,
                topics=topics,
                stop=stop,
                reload=lambda: streams_of(jobs()).streams,
            )
        for summary in end.summaries:
            sys.stdout.write(progress_line(summary) + "\n")
        end.expect_fine()
    except ChSinkError as error:
        sys.stderr.write(f"error: {error}\n" + (f"next: {error.hint}\n" if error.hint else ""))
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
