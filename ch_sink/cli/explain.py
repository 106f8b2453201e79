"""``ch_sink explain``: the biography of one row."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ch_sink.cli.options import AsJson, Only, Overrides, load_all
from ch_sink.cli.output import Output
from ch_sink.errors import ConfigError

__all__ = ["explain"]


def explain(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The YAML file.", show_default=False)],
    key: Annotated[str, typer.Argument(metavar="KEY_JSON", help="""The key, e.g. '{"id": 7}'.""", show_default=False)],
    only: Only = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Show every event of the topic for one key, the rule that decided about it, and what is stored."""
    from ch_sink.pipeline.target import Target
    from ch_sink.ports import TopicFacts
    from ch_sink.trust.explain import biography, stored_rows
    from ch_sink.trust.wiring import subject_of

    out = Output(as_json=as_json)
    wanted = _key(key)
    streams = load_all(out, [config], overrides, only)
    if len(streams) != 1:
        raise ConfigError(f"{config} has {len(streams)} streams", hint="Choose one with --only.")
    subject = subject_of(streams[0])
    stored = stored_rows(subject.client, subject.table, wanted)
    settings = subject.settings
    topic_id = subject.topic.state(settings.topic).topic_id
    epochs = [fact.epoch for fact in subject.ledger.facts(TopicFacts) if fact.topic_id == topic_id]
    found = biography(
        subject.topic,
        settings.topic,
        Target.of(subject.table, settings.policy),
        subject.decoder(subject.table, False),
        wanted,
        max(epochs, default=0),
    )
    found.stored = stored
    columns = ("partition", "offset", "op", "position", "epoch", "rule", "why")
    out.table(columns, [(e.partition, e.offset, e.op, e.position, e.epoch, e.rule, e.why) for e in found.events])
    if not found.events:
        out.say("the topic holds no event of this key")
    for row in stored:
        out.say("stored: " + ", ".join(f"{name}={value}" for name, value in row.items()))
    out.document(found.as_json())


def _key(text: str) -> dict[str, Any]:
    try:
        made = json.loads(text)
    except ValueError:
        made = None
    if not isinstance(made, dict) or not made:
        raise ConfigError(f"the key {text} is no JSON object", hint="""Write it as '{"id": 7}'.""")
    return made
