"""How many offsets each stream of a job may read in its next batch."""

from collections.abc import Mapping

__all__ = ["fair_shares"]


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
