"""What besides the records decides which rows a range gives: the version of ch_sink, the stream's policy, the table."""

from hashlib import blake2b

from ch_sink import __version__
from ch_sink.model.policy import Policy
from ch_sink.table.model import TargetTable

__all__ = ["fingerprint"]


def fingerprint(policy: Policy, table: TargetTable, version: str = __version__) -> str:
    """A short text; another one if the same records may give other rows. Secrets are not part of it."""
    columns = sorted((c.name, c.type, c.default_kind, c.default_expression) for c in table.columns)
    decisive = (version, policy, table.engine, columns, table.sorting_key, table.partition_key)
    return blake2b(repr(decisive).encode(), digest_size=12).hexdigest()
