"""SingleStore: its shards have offsets of their own, which no single order holds together."""

import re
from typing import Literal

import msgspec
import numpy as np

from ch_sink.errors import PositionError
from ch_sink.sources.base import Blocks, Positions, split, words

__all__ = ["SINGLESTORE", "SingleStore"]


class Block(msgspec.Struct, gc=False):
    """The ``source`` block's position: the database partition of the change, and an offset for each of them."""

    partitionId: int | None = None  # noqa: N815 (the field's name)
    offsets: list[str | None] | None = None


class SingleStore:
    """No commit position: Kafka's order decides. Inner position: the change's offset in its own database partition.

    Rows of a snapshot come as creates. ``before`` is always null, and so are both images of a delete: the key is
    the only trace of the row. Times are the connector's clock.
    """

    name = "singlestore"
    connectors = frozenset(("singlestore",))
    wire: type[msgspec.Struct] = Block
    default_strategy: Literal["source_position", "kafka_offset"] = "kafka_offset"
    unique_inner = False
    inner_is_log = False
    omits_values = False
    whole_before = False
    creates_new_rows = False
    deferrable = False
    per_database = False

    def positions(self, blocks: Blocks) -> Positions:
        """Inner positions, by number and not by text: offsets have 48 or 56 digits. Raises PositionError."""
        n = len(blocks)
        inner = [_offset(block.partitionId, block.offsets) for block in blocks]
        return Positions(np.zeros((n, 2), dtype=np.uint64), words(*split(inner)), np.zeros(n, dtype=np.bool_))


_OFFSET = re.compile(r"[0-9a-f]{1,256}", re.ASCII | re.IGNORECASE)


def _offset(partition: int | None, offsets: list[str | None] | None) -> int:
    """The low 128 bits of the partition's own offset; 0 if the event has none."""
    if partition is None or not offsets or not 0 <= partition < len(offsets):
        return 0
    text = offsets[partition]
    if text is None:
        return 0
    if _OFFSET.fullmatch(text) is None:
        raise PositionError(f"source.offsets[{partition}]: {text[:80]!r} is no number in hexadecimal digits")
    return int(text, 16) & ((1 << 128) - 1)


SINGLESTORE = SingleStore()
