"""What decides which rows a range gives: ch_sink's version, the stream's policy and table, whose records count."""

from hashlib import blake2b

from ch_sink import __version__
from ch_sink.model.policy import Policy
from ch_sink.table.model import TargetTable

__all__ = ["fingerprint"]

_BLOCKS = 2
"""Raised when the same chunk is cut into other blocks than before, under other tokens."""


def fingerprint(policy: Policy, table: TargetTable, source_table: str = "", version: str = __version__) -> str:
    """A short text; another one if the same range may give other rows. Secrets are not part of it.

    ``source_table``: the only source table whose records the stream takes; empty if it takes all.
    """
    columns = sorted((c.name, c.type, c.default_kind, c.default_expression) for c in table.columns)
    decisive = (version, _BLOCKS, policy, table.engine, columns, table.sorting_key, table.partition_key, source_table)
    return blake2b(repr(decisive).encode(), digest_size=12).hexdigest()
