"""Every feature of a drawn history can be forced or forbidden; ``None`` leaves it to the draw."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Knobs:
    operations: tuple[int, int] = (5, 60)
    partitions: int | None = None
    """Of the topic of a table with a key; that of a table without one has one."""
    encoding: Literal["plain", "schema"] | None = None
    snapshot: bool | None = None
    """Rows that are there before the stream and come as ``r`` first."""
    restarted_snapshot: bool | None = None
    """The initial snapshot breaks off and starts again later; no row is deleted or moved in between."""
    incremental: bool | None = None
    """An incremental snapshot in mid-stream (tables with a key)."""
    redelivery: bool | None = None
    """The connector is killed and sends a stretch again, up to twice."""
    regress: bool | None = None
    """Positions drop with new events: failover to lower file numbers, a restored cluster (tables with a key)."""
    overlapping: bool | None = None
    """Up to three transactions at a time; else one after the other."""
    rollbacks: bool = True
    key_changes: bool = True
    swaps: bool = True
    swap_share: int = 2
    """How often swaps are drawn, against four of plain updates."""
    rotations: bool = False
    """Direct swaps of three rows as well: each takes the key of the next."""
    deferred_swaps_without_images: bool = False
    """Direct swaps also where ``before`` is not whole. PostgreSQL has no such case (a deferrable primary key is no
    replica identity), so this is harder than the truth."""
    truncate: Literal["none", "alone", "mixed"] = "none"
    """``alone``: each in its own transaction; ``mixed``: among the row changes of one (MySQL always commits)."""
    truncates_move: bool = False
    """A re-delivered truncate may land on another partition: its null key gives it any."""
    extras: bool | None = None
    """Heartbeats and transaction records between the events."""
    tombstones: bool | None = None
    gaps: bool | None = None
    """Offsets that hold no record, also at the end."""
    high_offsets: bool = False
    """First offsets just below 2**31."""
    compressed: bool = False
    """MySQL: all events of a transaction share one position, so two changes can have one identity. Where every change
    counts, only the connector's run distinguishes a re-delivered one from a second one."""
    gtid_replay: bool = False
    """MySQL: after a failover the last transactions are sent again at their new positions (tables with a key)."""
    max_placeholder: bool | None = None
    """SQL Server: unchanged ``(max)`` values as the placeholder, in both images (tables with a key)."""
    step_ms: Sequence[int] = (7, 0, 1, 450, 2100)
    """Candidates for the time between two statements; 0 puts a whole stretch into one millisecond."""
