"""MongoDB: cluster times, which tie inside a transaction and mix clocks, so that Kafka's order decides."""

from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from ch_sink.sources.base import Blocks, Positions, numbers, values, words

__all__ = ["MONGODB", "MongoDB"]

_ORD, _MOST = np.uint64((1 << 32) - 1), (1 << 63) - 1


class Block(msgspec.Struct, gc=False):
    """The fields of the ``source`` block that distinguish a change from its neighbours.

    ``ord`` counts within a second of cluster time (−1 for rows of a snapshot), ``tord`` within a transaction of the
    oplog. ``h``, ``stxnid``, ``lsid`` and ``txnNumber`` identify transactions and are no order; ``wallTime`` is a
    clock.
    """

    ord: int | None = None
    tord: int | None = None


class MongoDB:
    """No commit position: changes are ordered by their Kafka offset (``kafka_offset``).

    The inner position consists of the source time's second, ``ord`` and ``tord``. Updates may state only what
    changed; that is not an unavailable value, which is a column's value.
    """

    name = "mongodb"
    connectors = frozenset(("mongodb",))
    wire: type[msgspec.Struct] = Block
    default_strategy: Literal["source_position", "kafka_offset"] = "kafka_offset"
    unique_inner = False
    inner_is_log = False
    omits_values = False
    whole_before = True
    creates_new_rows = False
    deferrable = False
    per_database = False

    def positions(self, blocks: Blocks) -> Positions:
        """Inner positions; missing or negative parts are 0, parts beyond their bits the largest."""
        n = len(blocks)
        second = np.minimum(_counts(blocks, "ts_ms") // np.uint64(1000), _ORD)
        low = second << np.uint64(32) | np.minimum(_counts(blocks, "ord"), _ORD)
        inner = words(_counts(blocks, "tord"), low)
        return Positions(words(0, np.zeros(n, dtype=np.uint64)), inner, np.zeros(n, dtype=np.bool_))


def _counts(blocks: Blocks, name: str) -> npt.NDArray[np.uint64]:
    """A field's numbers from 0 to the largest."""
    try:
        found = numbers(blocks, name)
    except OverflowError:
        found = np.array([min(max(value or 0, 0), _MOST) for value in values(blocks, name)], dtype=np.int64)
    return np.maximum(found, 0).astype(np.uint64)


MONGODB = MongoDB()
