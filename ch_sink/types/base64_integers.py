"""Connect decimals in JSON, all of a column at once: base64 of big-endian two's complement integers."""

import binascii

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["integers"]

_LONGEST = 12
"""Characters of eight bytes."""
_PAD = ord("=")


def integers(texts: pa.Array) -> npt.NDArray[np.int64] | None:
    """The integers of base64 texts, 0 for null and for no bytes; None unless all are plain and of eight bytes at most.

    ``texts``: a string array whose buffers begin with it.
    """
    _, offsets, content = texts.buffers()
    ends = np.frombuffer(offsets, dtype=np.int32)[: len(texts) + 1]
    lengths = np.diff(ends)
    if not len(lengths) or lengths.max() > _LONGEST or (lengths & 3).any():
        return None
    out = np.zeros(len(texts), dtype=np.int64)
    if content is None:
        return out
    octets = np.frombuffer(content, dtype=np.uint8)
    for length in np.unique(lengths[lengths > 0]).tolist():
        mine = np.flatnonzero(lengths == length)
        if len(mine) == len(out):
            characters = octets[ends[0] : ends[-1]].reshape(-1, length)
        else:
            characters = octets[ends[mine][:, None] + np.arange(length)]
        found = _of_one_length(characters)
        if found is None:
            return None
        out[mine] = found
    return out


def _of_one_length(characters: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64] | None:
    """``characters``: those of a text in each row."""
    count, length = characters.shape
    last = characters[:, -1] == _PAD
    pads = last + (last & (characters[:, -2] == _PAD)).astype(np.int64)
    size = length // 4 * 3 - pads
    text = characters.tobytes()
    if size.max() > 8 or text.count(b"=") != pads.sum():
        return None
    try:
        # As if each text went on without padding: its own bytes come first.
        raw = binascii.a2b_base64(text.replace(b"=", b"A"), strict_mode=True)
    except binascii.Error:
        return None
    octets = np.frombuffer(raw, dtype=np.uint8).reshape(count, -1)[:, :8]
    block = np.zeros((count, 8), dtype=np.uint8)
    block[:, : octets.shape[1]] = octets
    found: npt.NDArray[np.int64] = block.view(">i8").ravel().astype(np.int64) >> (64 - 8 * size)
    return found
