"""What decides which rows a range gives: ch_sink's version, the stream's policy and table, whose records count."""

from collections.abc import Collection
from hashlib import blake2b

from ch_sink import __version__
from ch_sink.model.policy import Policy
from ch_sink.ports import RangeIntent
from ch_sink.table.model import TargetTable

__all__ = ["fingerprint", "of_range", "same_chunks"]

_BLOCKS = 2
"""Raised when the same chunk is cut into other blocks than before, under other tokens."""


def fingerprint(policy: Policy, table: TargetTable, source_table: str = "", version: str = __version__) -> str:
    """A short text; another one if the same range may give other rows. Secrets are not part of it.

    ``source_table``: the only source table whose records the stream takes; empty if it takes all.
    """
    columns = sorted((c.name, c.type, c.default_kind, c.default_expression) for c in table.columns)
    decisive = (version, _BLOCKS, policy, table.engine, columns, table.sorting_key, table.partition_key, source_table)
    return blake2b(repr(decisive).encode(), digest_size=12).hexdigest()


def of_range(made: str, start: int, end: int) -> str:
    """The fingerprint of a range whose end the next attempt may change, and with it the chunks and their tokens."""
    return f"{made}@{start}-{end}"


def same_chunks(earlier: str, made: str, intent: RangeIntent, cuts: Collection[int]) -> bool:
    """Whether a range with this fingerprint had the chunks of the intent, from where that begins.

    Args:
        made: the stream's fingerprint now.
        cuts: offsets at which chunks of the partition ended for want of columns.
    """
    known, _, span = earlier.partition("@")
    start, _, end = span.partition("-")
    if known != made or end != str(intent.end):
        return False
    return int(start) == intent.start or intent.start in cuts
