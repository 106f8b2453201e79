"""Arguments and options that several commands share."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand

from ch_sink.errors import ChSinkError, ConfigError

if TYPE_CHECKING:
    from ch_sink.cli.output import Output
    from ch_sink.config import Config, Job
    from ch_sink.discovery.topic_watch import TopicWatch

ConfigFiles = Annotated[
    list[Path],
    typer.Argument(metavar="CONFIG", help="YAML files, each for one topic or many.", show_default=False),
]
Only = Annotated[
    str | None,
    typer.Option(
        metavar="PATTERN",
        help="Only streams whose name, topic or table matches this regular expression in full.",
        show_default=False,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a key of the file, e.g. clickhouse.table=orders. May be repeated."
    ),
]
KeyJson = Annotated[str, typer.Argument(metavar="KEY_JSON", help="""The key, e.g. '{"id": 7}'.""", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]

_NO_BRACES = str.maketrans("", "", "{}")


class Command(TyperCommand):
    """A command whose help shows arguments without braces and Python types: the words beside them say what they are."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the usage line."""
        return [piece.translate(_NO_BRACES) for piece in super().collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and options."""
        for parameter in self.params:
            if isinstance(parameter, TyperArgument):
                parameter.display_type_rich = lambda ctx: None  # type: ignore[method-assign]
        super().format_options(ctx, formatter)


def load_jobs(paths: list[Path], overrides: list[str] | None) -> "list[Job]":
    """The files, checked. Raises ConfigError if one is wrong."""
    # Imported here: help and completion do not need it, and it takes half a second.
    from ch_sink.config import load_job

    return [load_job(path, overrides or ()) for path in dict.fromkeys(paths)]


def load_all(
    out: "Output",
    paths: list[Path],
    overrides: list[str] | None,
    only: str | None = None,
    *,
    recorded: bool = False,
    strict: bool = False,
    refused: "dict[str, ChSinkError] | None" = None,
    topic: str = "",
    whole: bool = False,
) -> "list[Config]":
    """The streams of all files, as their topics are now; those that ``--only`` means.

    Args:
        recorded: while brokers do not answer, the topics are those that the ledger knows.
        strict: a topic that has no place of its own is an error; else it is left out with a warning.
        refused: gets those topics instead of a warning.
        topic: the only topic to look into; empty for all. Each one that names its table by its events costs a look.
        whole: topics of several tables are read whole to find them, as the job does.

    Raises ConfigError if a file is wrong, or if ``--only`` matches no stream; KafkaError if the topics cannot be
    listed.
    """
    from ch_sink.discovery.job_topics import TablesOfTopics, chosen, streams_of
    from ch_sink.discovery.statuses import stand_in

    wanted = chosen(only)
    jobs = load_jobs(paths, overrides)
    look = TablesOfTopics() if whole else None
    found = streams_of(jobs, away=out.warn if recorded else None, look=look, only_topic=topic)
    for note in found.notes:
        out.warn(note)
    for topic in found.empty:
        out.warn(f"topic {topic} has no event yet that names its table; it is skipped")
    apart = {t: error for t, error in found.refused.items() if wanted(stand_in(jobs, t))}
    if strict or not found.streams:
        found.expect_sound()
    elif refused is not None:
        refused |= apart
    else:
        for topic, error in apart.items():
            out.warn(f"topic {topic} is skipped: {error}")
    streams = [config for config in found.streams if wanted(config) and topic in ("", config.kafka.topic)]
    if topic and not streams and topic not in (*found.empty, *found.refused):
        raise ConfigError(f"no stream reads topic {topic}", hint="`ch_sink status CONFIG --json` names the topics.")
    if only is not None and found.streams and not streams and not apart:
        raise ConfigError(
            f"--only {only} matches none of {len(found.streams)} streams",
            hint=f"The first of them is {found.streams[0].stream_name}.",
        )
    return streams


def one_stream(streams: "list[Config]", path: Path) -> "list[Config]":
    """The streams, if there is one. Raises ConfigError."""
    if len(streams) != 1:
        raise ConfigError(f"{path} has {len(streams)} streams", hint="Choose one with --only.")
    return streams


def key_of(text: str) -> dict[str, Any]:
    """A key as JSON. Raises ConfigError."""
    try:
        made = json.loads(text, parse_float=str)  # as many digits as were written
    except ValueError:
        made = None
    if not isinstance(made, dict) or not made:
        raise ConfigError(f"the key {text} is not a JSON object", hint="""Write it as '{"id": 7}'.""")
    return made


def streams_again(paths: list[Path], overrides: list[str] | None) -> "Sequence[Config]":
    """The streams of all files as they are now, for a job that has read them before. Raises ChSinkError."""
    from ch_sink.discovery.job_topics import streams_of

    return streams_of(load_jobs(paths, overrides)).streams


def watch_topics(jobs: "list[Job]", reload: "Callable[[], list[Job]]", only: str | None = None) -> "TopicWatch":
    """A watch that finds the streams of all files, now and while a job runs. Raises ConfigError.

    ``reload``: reads the files again.
    """
    from ch_sink.discovery.job_topics import chosen
    from ch_sink.discovery.topic_watch import TopicWatch

    return TopicWatch(jobs, chosen(only), reload=reload)


def expect_some(topics: "TopicWatch", streams: "Sequence[Config]", only: str | None) -> None:
    """Raise ConfigError if ``--only`` means no stream, and none can come."""
    if only is not None and not streams and not topics.open:
        raise ConfigError(
            f"--only {only} matches no stream",
            hint="The pattern must match the whole name, topic or table of a stream.",
        )
