"""``ch_sink replay``: a range of a topic once more."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ch_sink.cli.options import AsJson, Only, Overrides, expecting_a_ledger, load_all
from ch_sink.cli.output import Output
from ch_sink.errors import ConfigError

if TYPE_CHECKING:
    from ch_sink.config import Config

__all__ = ["replay"]


def replay(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The YAML file.", show_default=False)],
    first: Annotated[
        str, typer.Option("--from", metavar="OFFSET|TIME", help="Offset or time to begin at.", show_default=False)
    ],
    end: Annotated[
        str, typer.Option("--to", metavar="OFFSET|TIME", help="Offset or time to end before.", show_default=False)
    ],
    into: Annotated[
        str, typer.Option("--into", metavar="TABLE", help="Another table of the database.", show_default=False)
    ] = "",
    only: Only = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Read a range of the topic again, into the stream's table or another one.

    A table that is right stays as it is. Times are those of the records in Kafka, in UTC if they name no zone.
    """
    from ch_sink.model.counted import counted
    from ch_sink.trust.replay import replayed
    from ch_sink.trust.wiring import handover_of, subject_of

    out = Output(as_json=as_json)
    streams = load_all(out, [config], overrides, only)
    if len(streams) != 1:
        raise ConfigError(f"{config} has {len(streams)} streams", hint="Choose one with --only.")
    [chosen] = streams
    bounds = [_offsets(chosen, text, option) for text, option in ((first, "--from"), (end, "--to"))]
    with expecting_a_ledger(chosen):
        subject = subject_of(chosen, context.obj.check)
        done = replayed(subject, bounds[0], bounds[1], into, handover=handover_of(chosen, subject.client))
    for partition, (start, stop) in sorted(done.ranges.items()):
        out.say(f"partition {partition}: offsets {start} to {stop - 1} into {done.table}")
    if not done.ranges:
        out.say("nothing to read again")
    if done.dead_letters:
        out.say(f"{counted(done.dead_letters, 'record')} cannot be applied")
    if done.waiting:
        out.say(
            f"not stored: {counted(done.waiting, 'change')} that wait for the values of a row under its old key; if "
            "the job has applied them, begin before the delete of that key (--from), or use `ch_sink repair`"
        )
    out.document(done.as_json())


def _offsets(config: "Config", text: str, option: str) -> dict[int, int]:
    """Partition → offset. Raises ConfigError, KafkaError."""
    from ch_sink.discovery.wiring import topic_offsets

    with topic_offsets(config) as offsets:
        if text.isdigit():
            return dict.fromkeys(offsets.partitions(config.kafka.topic), int(text))
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ConfigError(
                f"{option} {text} is neither an offset nor a time", hint="Write 1200, or 2026-11-22T12:00:00Z."
            ) from None
        at = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return offsets.at_time(config.kafka.topic, int(at.timestamp() * 1000))
