"""The events of a key, and the rule by which the engine keeps the row of one of them: the highest version."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from ch_sink.model.change import Half


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
    rule: str = ""
    """newer, superseded, re-delivered, floor, handed over, dead letter, waiting, not read yet, ignored, counted,
    loaded, erased, repaired."""
    why: str = ""
    half: int = 0
    kept: tuple[str, ...] = ()
    """Columns that the event does not state: their values are those of the row before."""
    key: str = ""
    """Values of its key, as text that tells keys apart: the wanted one may be a part of several."""
    other_key: str = ""
    """The key under which the row went on, or from which it came, as JSON."""
    against: "Event | None" = None
    """The event whose row this one was compared with."""

    def as_json(self) -> dict[str, Any]:
        other = self.against
        return {
            "partition": self.partition,
            "offset": self.offset,
            "op": self.op,
            "position": self.position,
            "epoch": self.epoch,
            "version": str(self.version),
            "rule": self.rule,
            "why": self.why,
            "other_key": self.other_key or None,
            "against": other
            and {
                "partition": other.partition,
                "offset": other.offset,
                "position": other.position,
                "epoch": other.epoch,
                "version": str(other.version),
            },
        }


@dataclass(slots=True)
class Biography:
    """All events of a key, by partition and offset."""

    key: dict[str, Any]
    events: list[Event] = field(default_factory=list)
    stored: list[dict[str, Any]] = field(default_factory=list)
    """Rows of the table, superseded and deleted ones included."""
    deleted: tuple[str, str] | None = None
    """The column that marks a deleted row, and its value there."""
    raw_keys: frozenset[bytes] = frozenset()
    """The Kafka keys of these events."""
    ids: tuple[tuple[str, int, int], ...] = ()
    """Source name, commit position and inner position of each half of a key change."""

    def is_deleted(self, row: Mapping[str, Any]) -> bool:
        """Whether a stored row is the mark of a deleted one."""
        return self.deleted is not None and str(row.get(self.deleted[0])) == self.deleted[1]

    def as_json(self) -> dict[str, Any]:
        stored = [row | {"deleted": self.is_deleted(row)} if "deleted" not in row else row for row in self.stored]
        return {"key": self.key, "events": [event.as_json() for event in self.events], "stored": stored}


def by_version(events: Sequence[Event], stored: Set[int] | None, others: Set[int]) -> list[Event]:
    """The rules of the events of one key that were written: the engine keeps the highest version of them.

    Of equal versions (times), the row that was inserted later stays.

    Args:
        stored: versions of the rows that the table has of the key; None if they do not tell events apart.
        others: versions of all events of the key.
    """
    newest = max(events, key=lambda e: (e.version, e.offset))
    ruled = [_written(e, newest) for e in events]
    if stored is None:
        return ruled
    top, why = max(stored, default=-1), ""
    if top > newest.version and top not in others:
        why = "the table has a row of a higher version, which no event has: a repair wrote it, or another program"
        return [replace(e, rule="repaired", why=why) if e.rule == "newer" else e for e in ruled]
    if not stored and newest.op != "d":
        why = "the highest version, but the table has no row of the key: see `ch_sink verify`"
        return [replace(e, why=why) if e.rule == "newer" else e for e in ruled]
    return ruled


def _written(event: Event, newest: Event) -> Event:
    """The rule of a written event, whose key's highest version is that of ``newest``."""
    other = f" {event.other_key}" if event.other_key else ""
    if event.half == Half.DELETE:
        return replace(event, rule="handed over", why=f"the row went on under the key{other or ' that follows'}")
    if event is not newest:
        return _outranked(event, newest)
    why = "the highest version: the row is deleted" if event.op == "d" else "the highest version: this is the row"
    kept = ", ".join(event.kept)
    if event.half == Half.CREATE:
        why += f", which came from its old key{other}" + (f" and brought its {kept} along" if kept else "")
    elif kept:
        why += f"; it keeps its {kept} from before"
    return replace(event, rule="newer", why=why)


def compared_with(event: Event, events: Sequence[Event]) -> Event:
    """An event that a rule left out, with the event that it was compared with if the topic has it."""
    other = event.against
    if other is None:
        return event
    wanted = (e for e in events if (e.partition == event.partition and e.offset == other.offset))
    if other.offset < 0:
        wanted = (e for e in events if e.version == other.version)
    found = next(wanted, other)
    return _outranked(event, found) if event.rule == "superseded" and found.op else replace(event, against=found)


def _outranked(event: Event, newest: Event) -> Event:
    higher = "a higher version" if newest.version > event.version else "the same version, and is later"
    why = f"offset {newest.offset} of partition {newest.partition}, position {newest.position}, has {higher}"
    if newest.epoch > event.epoch:
        why += ": it is in a later epoch, since positions stepped back or partitions were added before it"
    return replace(event, rule="superseded", why=why, against=newest)


def as_text(key: Mapping[str, Any]) -> str:
    """A key as JSON, bytes as text where they are."""
    return "{" + ", ".join(f'"{name}": {_shown(value)}' for name, value in key.items()) + "}"


def _shown(value: Any) -> str:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if value is None:
        return "null"
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else f'"{value}"'
