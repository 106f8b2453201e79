"""Connect decimals in JSON, all of a column at once: base64 of big-endian two's complement integers."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["integers"]

_LONGEST = 12
"""Characters of eight bytes."""
_INVALID, _PAD = 255, 64
_SIX = np.full(256, _INVALID, dtype=np.uint8)
_SIX[np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", dtype=np.uint8)] = range(64)
_SIX[ord("=")] = _PAD


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
        found = _of_one_length(_SIX[characters])
        if found is None:
            return None
        out[mine] = found
    return out


def _of_one_length(six: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64] | None:
    """``six``: the six bits of each character, a row for each text."""
    length = six.shape[1]
    last = six[:, -1] == _PAD
    pads = last + (last & (six[:, -2] == _PAD)).astype(np.int64)
    if six[:, :-2].max(initial=0) >= _PAD or (six[:, -2:] == _INVALID).any() or ((six[:, -2] == _PAD) & ~last).any():
        return None
    size = length // 4 * 3 - pads
    if size.max() > 8:
        return None
    head, tail = (np.zeros(len(six), dtype=np.uint64) for _ in range(2))
    for place in range(length):
        bits = head if place < length - 4 else tail
        bits <<= np.uint64(6)
        bits |= six[:, place] & 63
    gone = (8 * pads).astype(np.uint64)
    shift = (64 - 8 * size).astype(np.uint64)
    whole: npt.NDArray[np.uint64] = (head << (np.uint64(24) - gone) | tail >> gone) << shift
    found: npt.NDArray[np.int64] = whole.view(np.int64) >> shift.astype(np.int64)
    return found
