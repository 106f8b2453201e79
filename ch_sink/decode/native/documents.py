"""Extended JSON of scanned records that compiled code writes as plain JSON, and the fields of it that are asked for."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ch_sink.decode.native.library import address
from ch_sink.decode.native.scan import Mask, Scan, optional

__all__ = ["KEYS", "NIL", "STRING", "TEXTS", "WHOLE", "Written", "written"]

_NOTHING, NIL, _WORD, WHOLE, _DOUBLE, STRING, _SLASHED, _SPECIAL, _DECIMAL, _NESTED = (1 << kind for kind in range(10))
KEYS = _NOTHING | NIL | _WORD | WHOLE | STRING | _SPECIAL | _NESTED
"""Kinds of values, as bits: those whose plain JSON without quotes is what a text column for keys holds …"""
TEXTS = KEYS | _DOUBLE | _DECIMAL
"""… and what another text column holds: equal numbers need not have one text there."""
_REFUSED, _WRITTEN = 1, 2
_DOTLESS, _VALUES = 1, 2
_PART = np.dtype([("from", "<u4"), ("size", "<u4"), ("at", "<u4"), ("length", "<u4"), ("kind", "<u4")])


class Written:
    """The texts of a slot; those that were refused have to be read by other means."""

    def __init__(self, scan: Scan, slot: int, wanted: int) -> None:
        room, count = int(scan.sizes[slot]), scan.count
        self._library, self.count = scan.library, count
        self.texts = np.empty(room, dtype=np.uint8)
        # A date of one digit becomes that much longer.
        self.out = pa.allocate_buffer(3 * room, resizable=True)
        self.starts = np.empty(count + 1, dtype=np.int64)
        self.offsets = np.empty(count + 1, dtype=np.int32)
        self.states = np.empty(count, dtype=np.uint8)
        self.parts = np.empty((count, max(wanted, 1)), dtype=_PART)
        self.seen = np.zeros(max(wanted, 1), dtype=np.uint32)
        """Kinds of each field's values, as bits."""

    @property
    def refused(self) -> Mask:
        """Which texts were not written."""
        found: Mask = self.states == _REFUSED
        return found

    def given(self, place: int) -> str:
        """A text as it was given."""
        return self.texts[self.starts[place] : self.starts[place + 1]].tobytes().decode()

    def whole(self, arrow: pa.DataType) -> pa.Array:
        """The written texts; null for all others."""
        return self._array(arrow, self.states == _WRITTEN, pa.py_buffer(self.offsets), self.out)

    def field(self, number: int, arrow: pa.DataType) -> pa.Array:
        """A field's values as plain JSON without quotes; null where there is none."""
        parts = self.parts[:, number]
        valid = parts["kind"] > 1
        parts["length"][~valid] = 0
        offsets = np.empty(self.count + 1, dtype=np.int32)
        texts = pa.allocate_buffer(int(parts["length"].sum()))
        self._library.ch_parts(
            self.out.address, address(parts), self.parts.shape[1], self.count, address(offsets), texts.address
        )
        return self._array(arrow, valid, pa.py_buffer(offsets), texts)

    def begins(self, number: int, kind: int) -> npt.NDArray[np.uint8]:
        """The first bytes of a field's values of this kind that are not empty."""
        parts = self.parts[:, number]
        chosen = parts["at"][(parts["length"] > 0) & (1 << parts["kind"] == kind)]
        found: npt.NDArray[np.uint8] = np.frombuffer(self.out, dtype=np.uint8)[chosen]
        return found

    def literals(self, number: int) -> bytes:
        """A JSON array of a field's values as they were given; null where there is none."""
        parts, data = self.parts[:, number], self.texts.tobytes()
        starts, sizes = parts["from"].tolist(), parts["size"].tolist()
        found = [data[at : at + size] or b"null" for at, size in zip(starts, sizes, strict=True)]
        return b"[" + b",".join(found) + b"]"

    def _array(self, arrow: pa.DataType, valid: Mask, offsets: pa.Buffer, texts: pa.Buffer) -> pa.Array:
        bits = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
        return pa.Array.from_buffers(arrow, self.count, [bits, offsets, texts], null_count=-1 if bits else 0)


def written(
    scan: Scan,
    slot: int,
    names: Sequence[str] = (),
    kept: Mask | None = None,
    *,
    dotless: bool = False,
    values: bool = False,
) -> Written:
    """The texts of a slot, where ``kept`` holds, as plain JSON.

    ``names``: fields of the documents that are asked for. ``dotless``: refuse documents of which a key has a dot.
    ``values``: each text is any value, and field 0 is that.
    """
    encoded = [name.encode() for name in names]
    joined, ends = b"".join(encoded), np.cumsum([len(name) for name in encoded], dtype=np.uint32)
    made = Written(scan, slot, 1 if values else len(names))
    scan.library.ch_documents(
        scan.data,
        *scan.of(slot),
        optional(kept),
        dotless * _DOTLESS | values * _VALUES,
        joined,
        address(ends),
        1 if values else len(names),
        address(made.texts),
        address(made.starts),
        made.out.address,
        address(made.offsets),
        address(made.states),
        address(made.parts),
        address(made.seen),
    )
    made.out.resize(int(made.offsets[-1]), shrink_to_fit=True)
    return made
