"""Row images by number: the chunk's own rows, then rows from elsewhere, addressed as one sequence.

The merge decides *which* row each value comes from; values are moved only at the end, as Arrow ``take``s, so that
their types stay exact and no Python objects are created.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.merge.key_codes import flat

__all__ = ["Pool", "Refs"]

Refs = npt.NDArray[np.int64]
"""Row numbers in a Pool; -1 is 'no row' and reads as null."""


class Pool:
    """Segments of rows with the same columns. Numbers of later segments follow those of earlier ones."""

    def __init__(self, first: pa.Table) -> None:
        self._segments = [first]
        self._starts = [0]
        self._size: int = first.num_rows
        self._joined: dict[str, pa.Array] = {}

    def add(self, rows: pa.Table) -> int:
        """Append a segment; returns the number of its first row."""
        start: int = self._size
        self._segments.append(rows)
        self._starts.append(start)
        self._size += rows.num_rows
        self._joined.clear()
        return start

    def replace(self, name: str, values: pa.Array) -> None:
        """Other values for a column of the first segment."""
        first = self._segments[0]
        at = first.schema.get_field_index(name)
        self._segments[0] = first.set_column(at, first.schema.field(at), values)
        self._joined.pop(name, None)

    def column(self, name: str) -> pa.Array:
        """All rows of one column, in number order."""
        if name not in self._joined:
            kind = self._segments[0].schema.field(name).type
            parts = [flat(s.column(name)).cast(kind) for s in self._segments if s.num_rows]
            self._joined[name] = pa.concat_arrays(parts) if parts else pa.array([], type=kind)
        return self._joined[name]

    def take(self, name: str, refs: Refs) -> pa.Array:
        """Values of a column at these row numbers."""
        first = self._segments[0].num_rows
        top = int(refs.max(initial=-1))
        source = flat(self._segments[0].column(name)) if top < first else self.column(name)
        if len(refs) == len(source) and len(refs) and refs[0] == 0 and (np.diff(refs) == 1).all():
            return source
        if len(refs) and int(refs.min()) < 0:
            return source.take(pa.array(np.maximum(refs, 0), mask=refs < 0))
        return source.take(pa.array(refs))
