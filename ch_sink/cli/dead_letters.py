"""``ch_sink dead-letters``: the records that could not be applied, and what to do about them."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ch_sink.cli.options import AsJson, Command, ConfigFiles, Only, Overrides, load_all
from ch_sink.cli.output import Output
from ch_sink.errors import ConfigError
from ch_sink.model.counts import counted

if TYPE_CHECKING:
    from ch_sink.config import Config
    from ch_sink.ports import DeadLetter, StoredLetter
    from ch_sink.wiring.letters import Letters

dead_letters = typer.Typer(no_args_is_help=True, help="List, show, retry or drop records that could not be applied.")

Limit = Annotated[int, typer.Option(metavar="N", help="Maximum records shown per stream, newest first.", min=1)]
Kind = Annotated[
    str | None, typer.Option(metavar="KIND", help="Only dead letters of this kind, e.g. decode.", show_default=False)
]

At = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PARTITION:OFFSET", help="Only the dead letter at this offset. May be repeated.", show_default=False
    ),
]


@dead_letters.command("list", cls=Command)
def list_letters(
    configs: ConfigFiles,
    only: Only = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
    kind: Kind = None,
    limit: Limit = 100,
) -> None:
    """List open dead letters with their reasons."""
    _show(configs, only, overrides, Output(as_json=as_json), kind, limit, whole=False)


@dead_letters.command("show", cls=Command)
def show_letters(
    configs: ConfigFiles,
    only: Only = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
    kind: Kind = None,
    limit: Limit = 10,
) -> None:
    """Show open dead letters with key, value and headers."""
    _show(configs, only, overrides, Output(as_json=as_json), kind, limit, whole=True)


@dead_letters.command(cls=Command)
def retry(
    context: typer.Context,
    configs: ConfigFiles,
    only: Only = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
    kind: Kind = None,
) -> None:
    """Try dead letters again; newer rows are never overwritten.

    The stream pauses meanwhile. The records are applied in order, with the current configuration. Each letter stays in
    the table, marked with its outcome. A letter that still cannot be applied stays open, and the exit code is 1.
    """
    out = Output(as_json=as_json)
    streams: list[dict[str, Any]] = []
    for config, letters in _each(out, configs, only, overrides):
        entry = _named(config) | retried(config, letters, kind, context.obj.check)
        streams.append(entry)
        out.say(
            f"{config.stream_name}: {entry['applied']} applied, {entry['superseded']} superseded by newer changes, "
            f"{entry['waiting']} waiting for other rows, {len(entry['failed'])} still cannot be applied"
        )
        for failed in entry["failed"]:
            out.say(f"  partition {failed['partition']}, offset {failed['offset']}: {failed['reason']}")
    out.document({"streams": streams})
    if any(entry["failed"] for entry in streams):
        raise typer.Exit(1)


def retried(
    config: "Config", letters: "Letters", kind: str | None, check: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Retry the open letters of a stream; how many were applied and so on, and those that failed."""
    from ch_sink.trust.alone import alone

    with alone(config, "dead-letters retry", apply=True):
        chosen = {
            topic_id: [s.letter for s in found if kind in (None, s.letter.kind)]
            for topic_id, found in letters.open().items()
        }
        done = letters.retry(chosen, check)
    entry: dict[str, Any] = {"applied": 0, "superseded": 0, "waiting": 0, "failed": []}
    for (_, partition), result in done.items():
        for outcome in ("applied", "superseded", "waiting"):
            entry[outcome] += len(getattr(result, outcome))
        entry["failed"] += [
            {"partition": partition, "offset": offset, "reason": reason}
            for offset, reason in sorted(result.failed.items())
        ]
    return entry


@dead_letters.command(cls=Command)
def drop(
    configs: ConfigFiles,
    only: Only = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
    kind: Kind = None,
    at: At = None,
) -> None:
    """Settle dead letters without applying them.

    Their records stay in the table, marked as dropped.
    """
    from ch_sink.trust.alone import alone
    from ch_sink.wiring.letters import Letters

    out = Output(as_json=as_json)
    streams: list[dict[str, Any]] = []
    places = {_place(text) for text in at or ()}
    found = [(c, _chosen(c, letters, kind, places)) for c, letters in _each(out, configs, only, overrides)]
    for config, _ in found:  # all streams have such letters: one that lacks them has ended the command
        with Letters.of(config) as letters, alone(config, "dead-letters drop", apply=True):
            letters.drop(open_now := _chosen(config, letters, kind, places))
        dropped = sum(map(len, open_now.values()))
        streams.append({**_named(config), "dropped": dropped})
        out.say(f"{config.stream_name}: {counted(dropped, 'dead letter')} dropped")
    out.document({"streams": streams})


def _chosen(
    config: "Config", letters: "Letters", kind: str | None, places: set[tuple[int, int]]
) -> "dict[str, list[DeadLetter]]":
    """Topic → its open letters of this kind and at these places. Raises ConfigError for a place that has none."""
    chosen = {
        topic_id: [
            s.letter
            for s in found
            if kind in (None, s.letter.kind) and (not places or (s.letter.partition, s.letter.offset) in places)
        ]
        for topic_id, found in letters.open(whole=False).items()
    }
    found = {(letter.partition, letter.offset) for some in chosen.values() for letter in some}
    if lacking := sorted(places - found):
        raise ConfigError(
            f"stream {config.stream_name!r} has no open dead letter at {lacking[0][0]}:{lacking[0][1]}",
            hint="List the open ones with `ch_sink dead-letters list CONFIG`, and choose one stream with --only.",
        )
    return chosen


def _place(text: str) -> tuple[int, int]:
    """Partition and offset. Raises ConfigError."""
    partition, _, offset = text.partition(":")
    if not (partition.isdecimal() and offset.isdecimal()):
        raise ConfigError(f"--at {text} is not PARTITION:OFFSET", hint="Write PARTITION:OFFSET, such as 0:17.")
    return int(partition), int(offset)


def _show(
    configs: Any, only: str | None, overrides: Any, out: Output, kind: str | None, limit: int, *, whole: bool
) -> None:
    streams: list[dict[str, Any]] = []
    for config, letters in _each(out, configs, only, overrides):
        count, found = letters.count(kind), letters.newest(limit, kind, whole=whole)
        shown = [as_json(s, whole=whole) for s in found]
        streams.append({**_named(config), "count": count, "dead_letters": shown})
        out.say(f"{config.stream_name}: {counted(count, 'dead letter')}", style="bold")
        for entry in shown:
            column = f", column {entry['column']}" if entry["column"] else ""
            place = f"partition {entry['partition']}, offset {entry['offset']}"
            out.say(f"  {place}, {entry['time']}: {entry['kind']}{column}: {entry['reason']}")
            if whole:
                for part in ("key", "value", "headers"):
                    out.say(f"    {part}: {json.dumps(entry[part], ensure_ascii=False)}")
        if count > len(found):
            out.say(f"  and {count - len(found)} more; --limit shows them")
    out.document({"streams": streams})


def _each(out: Output, configs: Any, only: str | None, overrides: Any) -> "Iterator[tuple[Config, Letters]]":
    from ch_sink.wiring.letters import Letters

    for config in load_all(out, configs, overrides, only):
        with Letters.of(config) as letters:
            yield config, letters


def _named(config: "Config") -> dict[str, str]:
    place = config.clickhouse
    return {"stream": config.stream_name, "topic": config.kafka.topic, "table": f"{place.database}.{place.table}"}


def as_json(stored: "StoredLetter", *, whole: bool) -> dict[str, Any]:
    """A dead letter as a document; ``whole``: with its record."""
    letter = stored.letter
    entry: dict[str, Any] = {
        "partition": letter.partition,
        "offset": letter.offset,
        "kind": letter.kind,
        "column": letter.column,
        "reason": letter.reason,
        "time": datetime.fromtimestamp(stored.time, UTC).isoformat(timespec="milliseconds"),
    }
    if whole:
        entry["key"], entry["value"] = _text(letter.key), _text(letter.value)
        entry["headers"] = [[name, _text(value)] for name, value in letter.headers]
    return entry


def _text(value: bytes | None) -> str | None:
    """Bytes as text; those that are not text as Python writes them."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return repr(value)
