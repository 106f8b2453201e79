"""Connectors without a module of their own: Vitess, Informix, Spanner, CockroachDB, YugabyteDB, and those to come."""

from functools import lru_cache

import msgspec
import numpy as np

from ch_sink.sources.base import Blocks, Positions, Strategy

__all__ = ["Other", "other"]


class Block(msgspec.Struct, gc=False):
    """Nothing of the ``source`` block is read as a position."""


class Other:
    """A connector whose positions are not known: Kafka's order decides.

    What all Debezium connectors share holds: the envelope, the operations, keys, snapshots, headers of key changes.
    Nothing more is trusted: before images may be partial, a create may be of a row that is there, and the
    unavailable-value placeholder is one.
    """

    wire: type[msgspec.Struct] = Block
    default_strategy: Strategy = "kafka_offset"
    unique_inner = False
    inner_is_log = False
    omits_values = True
    whole_before = False
    creates_new_rows = False
    deferrable = False
    per_database = False

    def __init__(self, connector: str) -> None:
        self.name = connector
        self.connectors = frozenset((connector,))

    def positions(self, blocks: Blocks) -> Positions:
        """No positions."""
        zeros = np.zeros((len(blocks), 2), dtype=np.uint64)
        return Positions(zeros, zeros, np.zeros(len(blocks), dtype=np.bool_))


@lru_cache(maxsize=64)
def other(connector: str) -> Other:
    """The source system of a connector that has no module of its own."""
    return Other(connector)
