"""``ch_sink explain``: the biography of one row."""

from pathlib import Path
from typing import Annotated

import typer

from ch_sink.cli.options import AsJson, KeyJson, Only, Overrides, expecting_a_ledger, key_of, load_all, one_stream
from ch_sink.cli.output import Output

__all__ = ["explain"]


def explain(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="The YAML file.", show_default=False)],
    key: KeyJson,
    only: Only = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Show every event of the topic for one key, the rule that decided about it, and what is stored."""
    from ch_sink.pipeline.target import Target
    from ch_sink.ports import TopicFacts
    from ch_sink.trust.explain import biography, stored_rows
    from ch_sink.trust.key import wanted_key
    from ch_sink.trust.own_tables import own_tables
    from ch_sink.trust.wiring import subject_of

    out = Output(as_json=as_json)
    given = key_of(key)
    [chosen] = one_stream(load_all(out, [config], overrides, only), config)
    subject = subject_of(chosen)
    wanted = wanted_key(subject.client, subject.table, given)
    stored = stored_rows(subject.client, subject.table, wanted)
    settings = subject.settings
    topic_id = subject.topic.state(settings.topic).topic_id
    with expecting_a_ledger(chosen):
        epochs = [fact.epoch for fact in subject.ledger.facts(TopicFacts) if fact.topic_id == topic_id]
        noted = own_tables(chosen, subject.client).noted(topic_id, subject.reached(topic_id).applied)
    found = biography(
        subject.topic,
        settings.topic,
        Target.of(subject.table, settings.policy),
        # A delete of a row without a key is known by the values that it had.
        subject.decoder(subject.table, not subject.key),
        given,
        wanted,
        epoch=max(epochs, default=0),
        noted=noted,
    )
    found.stored = stored
    columns = ("partition", "offset", "op", "position", "epoch", "rule", "why")
    out.table(columns, [(e.partition, e.offset, e.op, e.position, e.epoch, e.rule, e.why) for e in found.events])
    if not found.events:
        out.say("the topic holds no event of this key")
    for row in stored:
        out.say("stored: " + ", ".join(f"{name}={value}" for name, value in row.items()))
    out.document(found.as_json())
