"""Flattened events: what is left of a source system once ``ExtractNewRecordState`` took the envelope away."""

from typing import Literal

import msgspec
import numpy as np

from ch_sink.sources.base import Blocks, Positions, Source

__all__ = ["FLATTENED", "Flattened"]

FLATTENED = "flattened"
"""Connector name of flattened events; ``flattened:postgresql`` if the added fields name the source."""


class _Nothing(msgspec.Struct, gc=False):
    """No field at all."""


class Flattened:
    """A source whose positions are added fields, and often absent.

    The default strategy is the Kafka offset, whatever fields there are: a topic's versions must not change their
    meaning when a field is added, and the null values that are deletes may carry none. What is not known of the
    source is taken for the harder case.
    """

    def __init__(self, name: str, base: Source | None) -> None:
        """``base``: the source system, None if no field names it."""
        self.base = base
        self.name = name
        self.connectors = frozenset((self.name,))
        self.wire: type[msgspec.Struct] = _Nothing if base is None else base.wire
        self.default_strategy: Literal["source_position", "kafka_offset"] = "kafka_offset"
        self.omits_values = base is None or base.omits_values
        self.unique_inner = base is not None and base.unique_inner
        self.inner_is_log = base is not None and base.inner_is_log
        self.whole_before = base is not None and base.whole_before
        # Ordered by offset, a create that is delivered again meets its own row.
        self.creates_new_rows = False
        self.deferrable = base is None or base.deferrable
        self.per_database = False  # the database is no added field that is asked for

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields of the ``source`` block that make the position; empty if the source is not known."""
        return self.wire.__struct_fields__

    def positions(self, blocks: Blocks) -> Positions:
        """Positions as far as fields were added; 0 and absent otherwise. Raises PositionError as the source does."""
        if self.base is not None:
            return self.base.positions(blocks)
        zeros = np.zeros((len(blocks), 2), dtype=np.uint64)
        return Positions(zeros, zeros.copy(), np.zeros(len(blocks), dtype=np.bool_))
