"""Sources whose positions order nothing, so that Kafka's order decides: MongoDB, SingleStore, and any other."""

import re
from functools import lru_cache

import msgspec
import numpy as np
import numpy.typing as npt

from ch_sink.errors import PositionError
from ch_sink.sources.base import Blocks, Positions, Source, Strategy, numbers, stated_positions, values, words

_ORD, _MOST = np.uint64((1 << 32) - 1), (1 << 63) - 1


class MongoDBBlock(msgspec.Struct, gc=False):
    """The fields of the ``source`` block that distinguish a change from its neighbours.

    ``ord`` counts within a second of cluster time (−1 for rows of a snapshot), ``tord`` within a transaction of the
    oplog. ``h``, ``stxnid``, ``lsid`` and ``txnNumber`` identify transactions and do not order them; ``wallTime`` is a
    clock.
    """

    ord: int | None = None
    tord: int | None = None


class MongoDB(Source):
    """No commit position: changes are ordered by their Kafka offset (``kafka_offset``).

    The inner position consists of the source time's second, ``ord`` and ``tord``. Updates may state only what
    changed; that is not an unavailable value, which is a column's value.
    """

    name = "mongodb"
    connectors = frozenset(("mongodb",))
    wire = MongoDBBlock

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


class SingleStoreBlock(msgspec.Struct, gc=False):
    """The ``source`` block's position: the database partition of the change, and an offset for each of them."""

    partitionId: int | None = None  # noqa: N815 (the field's name)
    offsets: list[str | None] | None = None


class SingleStore(Source):
    """No commit position: Kafka's order decides. Inner position: the change's offset in its own database partition.

    Rows of a snapshot come as creates. ``before`` is always null, and so are both images of a delete: the key is
    the only trace of the row. Times are the connector's clock.
    """

    name = "singlestore"
    connectors = frozenset(("singlestore",))
    wire = SingleStoreBlock

    def positions(self, blocks: Blocks) -> Positions:
        """Inner positions, by number and not by text: offsets have 48 or 56 digits. Raises PositionError."""
        n = len(blocks)
        inner = [_offset(block.partitionId, block.offsets) for block in blocks]
        return stated_positions([0] * n, inner, [False] * n)


_OFFSET = re.compile(r"[0-9a-f]{1,256}", re.ASCII | re.IGNORECASE)


def _offset(partition: int | None, offsets: list[str | None] | None) -> int:
    """The low 128 bits of the partition's own offset; 0 if the event has none."""
    if partition is None or not offsets or not 0 <= partition < len(offsets):
        return 0
    text = offsets[partition]
    if text is None:
        return 0
    if _OFFSET.fullmatch(text) is None:
        raise PositionError(f"source.offsets[{partition}]: {text[:80]!r} is not a number in hexadecimal digits")
    return int(text, 16) & ((1 << 128) - 1)


SINGLESTORE = SingleStore()


class Other(Source):
    """A connector whose positions are not known: Kafka's order decides.

    What all Debezium connectors share holds: the envelope, the operations, keys, snapshots, headers of key changes.
    Nothing more is trusted: before images may be partial, a create may be of a row that is there, and the
    unavailable-value placeholder is one.
    """

    omits_values = True

    def __init__(self, connector: str) -> None:
        self.name = connector
        self.connectors = frozenset((connector,))


@lru_cache(maxsize=64)
def other(connector: str) -> Other:
    """The source system of a connector that has no module of its own."""
    return Other(connector)


class Stated(Other):
    """Rows that are changes already, each with a number that orders it (``ch_sink.spark.changes``).

    The number is the whole position: whatever comes in which batch, and however often, has the same version. So there
    is nothing to be seen of re-delivery, and no order of arrival that could count.
    """

    default_strategy: Strategy = "stated"


STATED = Stated("stated")
