"""From ordered change events to rows: one module per engine family."""

from ch_sink.merge.append import merge_append, merge_multiset
from ch_sink.merge.collapsing import merge_collapsing
from ch_sink.merge.replacing import merge_replacing
from ch_sink.merge.resolve import handed_rows, resolve
from ch_sink.merge.resolved import Resolved, Scope
from ch_sink.merge.rows import Merged, System, version_column
from ch_sink.merge.stored_before import not_stored, not_stored_so

__all__ = [
    "Merged",
    "Resolved",
    "Scope",
    "System",
    "handed_rows",
    "merge_append",
    "merge_collapsing",
    "merge_multiset",
    "merge_replacing",
    "not_stored",
    "not_stored_so",
    "resolve",
    "version_column",
]
