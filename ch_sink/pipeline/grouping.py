"""Small chunks of several partitions of one table, stored by one insert: parts do not grow with partitions.

In a group is the first attempt at a chunk whose plan is nothing but inserts of one step, into a table for which a
second attempt looks up what of the chunk is stored: a collapsing one, one with versions, or one that keeps every change
and tells them apart. The group's insert has a token and a fence of its own; if it fails, so does each member. A second
attempt runs alone. It registers before it asks, and the fence holds as long as none has: so a first attempt need not
register itself.

Chunks are not grouped where stored rows do not show which changes they came from: a rollup does not say which
differences it has, and rows whose versions are times may be equal and still be of two changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import pyarrow as pa

from ch_sink.pipeline.merging import by_partition, change_identity
from ch_sink.pipeline.partition_sink import PartitionSink, Prepared
from ch_sink.pipeline.plans import Applied
from ch_sink.ports import Fence, Insert


@dataclass(frozen=True, slots=True)
class Member:
    """A chunk that is planned and not stored, and the sink that planned it."""

    sink: PartitionSink
    prepared: Prepared


def may_plan(sink: PartitionSink) -> bool:
    """Whether chunks may be planned that are stored together with others, before this execution begins."""
    target = sink.target
    looked_up = target.collapsing or target.appends or not target.exclusive
    return looked_up and not target.table.rollups and sink.settled and sink.storing.fence is None


def may_share(member: Member) -> bool:
    """Whether the chunk may be stored together with others."""
    made, target = member.prepared.made, member.sink.target
    if not made.only_inserts or len({insert.step for insert in made.inserts}) > 1:
        return False
    if member.prepared.released is not None:
        return False
    key = made.state.profile.key_columns
    # The topic may have more partitions at a second attempt.
    found = (change_identity(insert, target, key, alone=False) for insert in made.inserts)
    return not target.appends or all(names is not None for names in found)


def store_together(members: Sequence[Member], fence: Fence) -> list[Applied]:
    """Store the chunks of one table; what became of each.

    Args:
        fence: that of the first executions of all members.

    Raises:
        ClickHouseError: some of it may be stored. LedgerConflict: a member is superseded.
    """
    sink = members[0].sink
    for insert in _joined(members):
        token = group_token([m.sink.name.token(*m.prepared.span, insert.label) for m in members])
        with sink.stages.stage("insert"):
            sink.storing.writer.write(insert, token, fence=fence, by_content=True)
    return [m.sink.storing.outcome(m.prepared.made, m.prepared.records, *m.prepared.span) for m in members]


def group_token(alone: Sequence[str]) -> str:
    """Deduplication token of one insert of a group, made of those that its members would have alone."""
    return f"group-{sha256(repr(sorted(alone)).encode()).hexdigest()}"


def _joined(members: Sequence[Member]) -> list[Insert]:
    """The inserts of all members: rows of one step and the same columns are one, by table partition."""
    alike: dict[tuple[str, pa.Schema], list[pa.Table]] = {}
    for insert in (insert for m in members for insert in m.prepared.made.inserts):
        alike.setdefault((insert.step, insert.rows.schema.remove_metadata()), []).append(insert.rows)
    joined = []
    for number, ((step, _), tables) in enumerate(alike.items()):
        rows = pa.concat_tables(tables).combine_chunks()
        label = step if not number else f"{step} {number}"
        joined += by_partition(rows, members[0].sink.target, label)
    return joined
