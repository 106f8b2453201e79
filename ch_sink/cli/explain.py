"""``ch_sink explain``: the biography of one row."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ch_sink.cli.comparing import say_to
from ch_sink.cli.options import AsJson, KeyJson, Only, Overrides, key_of, load_all, one_stream
from ch_sink.cli.output import Output

if TYPE_CHECKING:
    from ch_sink.trust.biography import Biography, Event

_VALUE, _WHY = 60, 300
"""Most characters of a value, and of a reason, unless all of them are asked for."""
_WORDS = {"c": "create", "r": "snapshot", "u": "update", "d": "delete", "?": "unreadable"}


def explain(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The YAML file.", show_default=False)],
    key: KeyJson,
    topic: Annotated[
        str,
        typer.Option("--topic", metavar="NAME", help="Topic to read, if the file has several.", show_default=False),
    ] = "",
    full: Annotated[bool, typer.Option("--full", help="Show whole values instead of cutting them to a line.")] = False,
    only: Only = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Show every event of the topic for one key, the rule that decided about it, and what is stored."""
    from ch_sink.trust.biography import Biography
    from ch_sink.trust.one_key import explained

    out = Output(as_json=as_json)
    found = Biography(key_of(key))
    [chosen] = one_stream(load_all(out, [config], overrides, only, topic=topic), config)
    with out.documenting(context.obj, found.as_json):
        explained(chosen, found, context.obj.check, say_to(out))
    out.progress_done()
    columns = ("partition", "offset", "what", "position", "epoch", "rule", "why")
    out.table(columns, [_event(event, whole=full) for event in found.events])
    if not found.events:
        out.say("the topic has no event with this key")
    for line in _stored(found, whole=full):
        out.say(line)


def _event(event: "Event", *, whole: bool) -> tuple[object, ...]:
    what = _WORDS.get(event.op, event.op) + (" (key change)" if event.half else "")
    why = event.why if whole else _cut(event.why, _WHY)
    return event.partition, event.offset, what, event.position, event.epoch, event.rule, why


def _stored(found: "Biography", *, whole: bool) -> list[str]:
    """A line for each stored row, those of deleted rows marked as such."""
    lines = []
    for row in found.stored:
        values = ", ".join(f"{name}={value if whole else _cut(str(value), _VALUE)}" for name, value in row.items())
        lines.append(f"stored{' (deleted)' if found.is_deleted(row) else ''}: {values}")
    return lines


def _cut(text: str, most: int) -> str:
    """The beginning of a text, on one line."""
    flat = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[:most]}… ({len(text)} characters)"
