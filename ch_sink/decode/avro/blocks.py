"""The source blocks of Avro datums, by field."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.decode.avro.convert import block_column, listed, objects
from ch_sink.decode.avro.scanned import Texts
from ch_sink.decode.avro.vectors import Plain, Struct

__all__ = ["Block"]


class Block:
    """Source blocks as what reads positions takes them (see `sources.base.Columns`)."""

    def __init__(
        self, source: Struct, wire: type[msgspec.Struct], absent: Mapping[str, Any], places: Sequence[int]
    ) -> None:
        """``absent``: the fields of ``wire``, each with the value used if the schema lacks it. Raises Fault."""
        self._source, self._wire, self._absent, self._places = source, wire, absent, places
        self._known: dict[str, list[Any]] = {}
        self._texts: dict[str, pa.Array] = {}
        # Text that is not UTF-8 is reported before a position of which it makes no sense.
        for name in absent:
            vector = source.fields.get(name)
            if not isinstance(vector, Texts):
                if not isinstance(vector, Plain):
                    self.values(name)
            elif (repeated := vector.repeated()) is not None:
                self._known[name] = repeated
            else:
                self._texts[name] = block_column(vector, places)

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Any]:
        if not self._absent:
            return iter([self._wire() for _ in self._places])
        return (self._wire(*row) for row in zip(*map(self.values, self._absent), strict=True))

    def values(self, name: str) -> list[Any]:
        found = self._known.get(name)
        if found is None:
            column = self._texts.get(name)
            vector, absent = self._source.fields.get(name), self._absent.get(name)
            found = listed(vector, len(self), absent, self._places) if column is None else objects(column)
            self._known[name] = found
        return found

    def numbers(self, name: str) -> npt.NDArray[np.int64] | None:
        vector = self._source.fields.get(name)
        if not isinstance(vector, Plain) or vector.values.dtype != np.int64:
            return None
        return vector.values if vector.valid is None else np.where(vector.valid, vector.values, 0)

    def texts(self, name: str) -> pa.Array | None:
        return self._texts.get(name)
