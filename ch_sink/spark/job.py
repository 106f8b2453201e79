"""The main job: ``spark-submit job.py --config orders.yaml [--config …] [--once]``, and what ``ch_sink run`` calls."""

import argparse
import logging
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace

from ch_sink.config import Config, load_job
from ch_sink.config import Job as JobFile
from ch_sink.discovery.topic_watch import TopicWatch
from ch_sink.errors import ChSinkError, StreamsFailed
from ch_sink.observe.job_view import JobView, JobWatch, Lines, Live
from ch_sink.observe.logs import formatter, logging_to
from ch_sink.observe.stream import StreamSummary, progress_line
from ch_sink.spark.application import Application
from ch_sink.spark.session import JvmStart, properties_of
from ch_sink.stream.job import Job, JobOptions
from ch_sink.wiring.crew import Crew, Observers
from ch_sink.wiring.process import Stop, allow_descriptors, run_stoppable
from ch_sink.wiring.streams import SharedTopics

log = logging.getLogger("ch_sink")


@dataclass(frozen=True, slots=True)
class JobEnd:
    """The end of a job."""

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


def run_job(
    configs: Sequence[Config],
    *,
    once: bool = False,
    fail_fast: bool = False,
    master: str | None = None,
    topics: TopicWatch | None = None,
    started: JvmStart | None = None,
    stop: Stop | None = None,
    seen: Observers | None = None,
) -> JobEnd:
    """Run the streams of these configurations in one Spark application; returns when all have ended.

    A stream that fails does not end the others. Spark starts while they open, and their first batch waits for it.

    Args:
        once: end when everything that is there now has been read.
        fail_fast: end when the first stream fails.
        topics: finds the topics that come and go; its first look made ``configs``.
        started: the JVM, if it has been started for these configurations.
        stop: once requested, running batches come to their end and no further one begins.
        seen: who follows the job.

    Raises ConfigError if the metrics' address cannot be taken.
    """
    allow_descriptors(len(configs))
    stop, seen = stop or Stop(), seen or Observers()
    settings = list(configs) or (list(topics.usual) if topics is not None else [])
    if not settings:
        return JobEnd([], {})
    application = Application(properties_of(settings), master or settings[0].spark.master, started, stop)
    address = next((config.metrics for config in settings if config.metrics), None)
    with _metrics(address, seen.live), closing(application), closing(SharedTopics()) as brokers:
        options = JobOptions(
            slots=application.slots,
            once=once,
            fail_fast=fail_fast,
            stopping=lambda: stop.requested,
            abandon=application.cancel,
            lost=application.lost,
        )
        job = Crew(application.add, brokers, topics, seen).job(configs, application.execute, options)
        seen.watch.source = lambda: _view(job, application)
        seen.live.follow(lambda: job.view().streams)
        application.start()
        failures = job.run()
    return JobEnd(job.summaries, failures)


def run_streams(
    configs: Sequence[Config],
    *,
    once: bool = False,
    on_batch: Callable[[StreamSummary], None] | None = None,
    stop: Stop | None = None,
) -> list[StreamSummary]:
    """As `run_job`; returns the summaries. Raises ChSinkError after the end if a stream failed."""
    end = run_job(configs, once=once, stop=stop, seen=Observers(on_batch))
    end.expect_fine()
    return end.summaries


def _metrics(address: str | None, live: Live) -> AbstractContextManager[None]:
    if address is None:
        return nullcontext()
    from ch_sink.serve.metrics import serving

    return serving(address, live)


def _view(job: Job, application: Application) -> JobView:
    seen = job.view()
    return replace(seen, doing=seen.doing or application.doing)


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
                topics=topics,
                stop=stop,
                seen=Observers(watch=watch),
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
