"""How many offsets each stream of a job may read in its next batch."""

from collections.abc import Mapping

__all__ = ["LONG", "fair_shares", "in_turn"]

LONG = 50_000
"""Offsets above which a stream's backlog is long."""
_TURN = 200_000
"""Offsets of long backlogs that are read at once while other streams are live: a second or two of work."""


def in_turn(limit: int | None) -> int:
    """The limit of a stream with a long backlog while others are live."""
    return _TURN if limit is None else min(limit, _TURN)


def fair_shares(needs: Mapping[str, int], limits: Mapping[str, int | None]) -> dict[str, int | None]:
    """Share the largest of the limits among the streams that have something to read.

    The share is equal; what a stream does not need is left to the others. No stream gets more than its own limit, or
    less than one offset. A stream without a limit does not take part: None.
    """
    shares: dict[str, int | None] = dict.fromkeys(needs)
    limited = {name: limit for name in needs if (limit := limits[name]) is not None}
    left = max(limited.values(), default=0)
    # Smallest need first: its unused share is left to those after it.
    waiting = sorted(limited, key=lambda name: (min(needs[name], limited[name]), name))
    for number, name in enumerate(waiting):
        share = max(1, min(needs[name], limited[name], -(-left // (len(waiting) - number))))
        shares[name] = share
        left = max(0, left - share)
    return shares
