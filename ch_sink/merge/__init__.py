"""From ordered change events to rows: one module per engine family."""

from ch_sink.merge.append import Changes, merge_append, merge_multiset
from ch_sink.merge.collapsing import merge_collapsing
from ch_sink.merge.dependent import LeftOpen
from ch_sink.merge.replacing import merge_replacing
from ch_sink.merge.resolve import handed_rows, resolve
from ch_sink.merge.resolved import Merged, Resolved, Scope, System, version_column

__all__ = [
    "Changes",
    "LeftOpen",
    "Merged",
    "Resolved",
    "Scope",
    "System",
    "handed_rows",
    "merge_append",
    "merge_collapsing",
    "merge_multiset",
    "merge_replacing",
    "resolve",
    "version_column",
]
