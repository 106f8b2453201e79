"""The rule that decided about each event of a key, from their versions and from what the sink's own tables note."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from ch_sink.model.change import Half
from ch_sink.ports import TableRefilled

__all__ = ["Event", "Noted", "Truncate", "judged"]


@dataclass(frozen=True, slots=True)
class Event:
    """One record of the key."""

    partition: int
    offset: int
    op: str
    position: int
    """Commit position, or Kafka offset if those order the stream."""
    epoch: int
    version: int
    rule: str
    """newer, superseded, re-delivered, floor, handed over, dead letter, waiting, not read yet, ignored, counted,
    loaded, erased, repaired."""
    why: str
    half: int = 0
    kept: tuple[str, ...] = ()
    """Columns that the event does not state: their values are those of the row before."""
    key: str = ""
    """Values of its key, as text that tells keys apart: the wanted one may be a part of several."""

    def as_json(self) -> dict[str, Any]:
        return {
            "partition": self.partition,
            "offset": self.offset,
            "op": self.op,
            "position": self.position,
            "epoch": self.epoch,
            "version": str(self.version),
            "rule": self.rule,
            "why": self.why,
        }


@dataclass(frozen=True, slots=True)
class Noted:
    """What the ledger and the sink's other tables say of the topic's records."""

    applied: Mapping[int, int] | None = None
    """Partition → the offset below which everything is applied; None if that is not known."""
    letters: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """Partition and offset of dead letters that are not settled → reason."""
    waiting: Set[tuple[int, int]] = frozenset()
    """Partition and offset of the changes that wait for another row's values."""
    loads: Sequence[TableRefilled] = ()
    """The times that the table was filled from the source."""
    erased: Set[tuple[int, int]] = frozenset()
    """Partition and offset of the changes whose rows were erased."""
    dropped: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """Partition and offset of dead letters that were dropped → reason."""
    stored: Set[int] | None = None
    """Versions of the rows that the table has of the key, marks included; None if they do not tell events apart."""


@dataclass(frozen=True, slots=True, order=True)
class Truncate:
    """A truncate that the stream carries out."""

    version: int
    partition: int
    offset: int


def judged(
    events: Sequence[Event],
    truncates: Sequence[Truncate],
    noted: Noted,
    *,
    keyed: bool = True,
    forgets_deletes: bool = False,
) -> list[Event]:
    """The events with their rules, by partition and offset.

    Args:
        keyed: False for a table whose equal rows are counted.
        forgets_deletes: the table cannot mark deleted rows, and the configuration ignores deletes.
    """
    floor = max((t for t in truncates if _read(t.partition, t.offset, noted)), default=None)
    marked = [_first_rules(event, floor, noted, forgets_deletes) for event in events]
    alive, ruled = [e for e in marked if not e.rule], [e for e in marked if e.rule]
    if keyed:
        keys = dict.fromkeys(e.key for e in alive)
        stored = noted.stored if len(keys) == 1 else None
        known = {e.version for e in ruled}
        decided = [e for key in keys for e in _by_versions([e for e in alive if e.key == key], stored, known)]
    else:
        decided = [replace(e, rule="counted", why=_counted(e)) for e in alive]
    return sorted([*ruled, *decided], key=lambda e: (e.partition, e.offset))


def _by_versions(events: Sequence[Event], stored: Set[int] | None, others: Set[int]) -> list[Event]:
    """The rules of events of one key. Of equal versions (times), the row that was inserted later stays.

    ``others``: versions of events that are ruled otherwise, such as those that are being read.
    """
    newest = max(events, key=lambda e: (e.version, e.offset))
    if stored is None:
        return [_by_version(e, newest) for e in events]
    top = max(stored, default=-1)
    if newest.half == Half.DELETE and top < newest.version:
        # Two rows swapped their keys: the former one leaves after the new one has come.
        moved = (e for e in events if (e.epoch, e.position, e.version) == (newest.epoch, newest.position, top))
        newest = next(moved, newest)
    judged = [_by_version(e, newest) for e in events]
    if top > newest.version and top not in others | {e.version for e in events}:
        why = "the table has a row of a higher version, which no event has: a repair wrote it, or another program"
        return [replace(e, rule="repaired", why=why) if e.rule == "newer" else e for e in judged]
    if not stored and newest.op != "d":
        why = "the highest version, but the table has no row of the key: see `ch_sink verify`"
        return [replace(e, why=why) if e.rule == "newer" else e for e in judged]
    return judged


def _first_rules(event: Event, floor: Truncate | None, noted: Noted, forgets_deletes: bool) -> Event:
    """The rules that need no other event of the key."""
    place = (event.partition, event.offset)
    if not _read(*place, noted):
        return replace(event, rule="not read yet", why=event.why or "the stream has not come to it")
    if place in noted.erased:
        return replace(event, rule="erased", why="`ch_sink purge --key` has removed the row")
    if any(event.partition == load.partition and event.offset < load.offset for load in noted.loads):
        return replace(event, rule="loaded", why="the table was filled from the source since, which showed the change")
    if place in noted.letters:
        return replace(event, rule="dead letter", why=noted.letters[place])
    if place in noted.waiting:
        return replace(event, rule="waiting", why="for the row under its old key, or behind such a change")
    if event.rule == "dead letter":
        return event
    if place in noted.dropped and event.version not in (noted.stored or ()):
        return replace(event, rule="dead letter", why=f"{noted.dropped[place]}; it was dropped")
    if floor is not None and event.version < floor.version:
        return replace(
            event, rule="floor", why=f"below the truncate at offset {floor.offset} of partition {floor.partition}"
        )
    if event.op == "d" and forgets_deletes and not event.rule:
        return replace(event, rule="ignored", why="deletes: ignore, and the table cannot mark deleted rows")
    return event


def _by_version(event: Event, newest: Event) -> Event:
    if event.half == Half.DELETE:
        return replace(event, rule="handed over", why="the row went on under another key")
    if event is newest:
        return replace(event, rule="newer", why=_newest(event))
    higher = "a higher version" if newest.version > event.version else "the same version, and is later"
    above = f"offset {newest.offset} of partition {newest.partition} has {higher}"
    if newest.epoch > event.epoch:
        above += ": it is in a later epoch, since positions stepped back or partitions were added before it"
    return replace(event, rule="superseded", why=above)


def _newest(event: Event) -> str:
    if event.op == "d":
        return "the highest version: the row is deleted"
    if event.half == Half.CREATE:
        return "the highest version: this is the row; its missing values came from the row's old key"
    kept = f"; it keeps its {', '.join(event.kept)} from before" if event.kept else ""
    return "the highest version: this is the row" + kept


def _counted(event: Event) -> str:
    return "one such row less" if event.op == "d" else "one such row more"


def _read(partition: int, offset: int, noted: Noted) -> bool:
    return noted.applied is None or offset < noted.applied.get(partition, 0)
