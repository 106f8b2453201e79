"""Whether all changes of a key come from one partition, in order, where that decides what is stored.

Kafka's producers choose a record's partition by the bytes of its key. So the Kafka key must be the table's key, and
another way of writing it moves rows between partitions: another converter, schema or schema id.
"""

from collections.abc import Sequence
from typing import Protocol

from ch_sink.decode.key_layouts import KeyForm
from ch_sink.errors import StreamFailed
from ch_sink.model.change import ChangeBatch, Op, Records
from ch_sink.order import State
from ch_sink.pipeline.barrier import Barrier
from ch_sink.pipeline.target import Target
from ch_sink.sources import Source


class ReadsKeys(Protocol):
    """See `ch_sink.pipeline.plans.BatchDecoder`."""

    def key_forms(self, keys: Sequence[bytes | None]) -> list[KeyForm]: ...


def in_one_partition(
    batch: ChangeBatch, records: Records, target: Target, source: Source | None, decoder: ReadsKeys, state: State
) -> tuple[State, Barrier | None]:
    """The state that knows how keys are written, and the barrier before the first one that is written otherwise.

    Raises:
        StreamFailed: the topic has several partitions, and its records have no keys, or keys with fields that the
            table's key lacks.
    """
    strategy, rows = target.strategy(source), batch.op != Op.TRUNCATE
    if state.alone or not rows.any() or strategy == "stated":
        return state, None
    if batch.key is None or _lack_kafka_keys(batch.source_index[rows].tolist(), records):
        raise without_keys(records.topic, uncounted=state.uncounted)
    needs = strategy == "kafka_offset" or target.versions_are_times
    needs = needs or target.needs_stored_rows(tuple(batch.key.column_names), source)
    if not needs and not target.policy.keys.ignored:
        return state, None
    places = batch.source_index.tolist()
    forms = decoder.key_forms([records.keys[place] for place in places])
    if longer := next((form for form in forms if form.ignored), None):
        raise StreamFailed(
            f"the keys of {records.topic} have {', '.join(longer.ignored)}, which ignored_key_fields leaves out: "
            "changes of a row may be in several partitions, and nothing tells which is the last of a transaction",
            hint="Use a topic of one partition, or keep the field in the table's key.",
        )
    if not needs:
        return state, None
    if not state.key_forms and forms:
        state = state.rewritten(forms[0].schema, forms[0].name)
    first = next((form for form in forms if state.key_forms.get(form.schema) != form.name), None)
    if first is not None:
        place = places[first.first]
        at = int(records.offsets[place]), int(records.timestamps[place])
        return state, Barrier("key_form", at[0], key_form=(first.schema, first.name), timestamp=at[1])
    return state, None


def without_keys(topic: str, *, uncounted: bool = False) -> StreamFailed:
    """The error for a topic without keys that has several partitions; ``uncounted``: that may have several."""
    return StreamFailed(
        f"the records of {topic} carry no key, so changes of a row may be in any of its partitions, in any order",
        hint="Name the brokers (kafka.bootstrap.servers): the topic may have one partition."
        if uncounted
        else "Use a topic of one partition, or let the connector write keys (message.key.columns), if some columns "
        "are unique in the source.",
    )


def _lack_kafka_keys(rows: Sequence[int], records: Records) -> bool:
    """Whether records of rows have no key. That of a truncate never has one."""
    return None in records.keys and any(records.keys[row] is None for row in rows)
