"""The compiled scanner, if it was built for this machine."""

import ctypes
import os
from functools import cache
from pathlib import Path

__all__ = ["OFF", "library"]

OFF = "CH_SINK_NATIVE"
"""An environment variable: ``0`` if the scanner must not be used."""
_NAME = "libscan.so"
_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_int64
_CELLS = (_POINTER, _COUNT, _COUNT)
_OF = (_POINTER, *_CELLS)
"""The records' text, and the cells of one slot."""
_FUNCTIONS: dict[str, tuple[object, tuple[object, ...]]] = {
    "ch_scan": (
        _COUNT,
        (_POINTER, _POINTER, _COUNT, _POINTER, _COUNT, _POINTER, _POINTER, _COUNT, _POINTER, _POINTER),
    ),
    "ch_integers": (None, (*_CELLS, _POINTER, _POINTER, _POINTER)),
    "ch_are": (None, (*_CELLS, ctypes.c_uint32, _POINTER)),
    "ch_flags": (None, (*_CELLS, _POINTER, _POINTER, _POINTER)),
    "ch_texts": (None, (*_OF, _POINTER, _POINTER, _POINTER, _POINTER)),
    "ch_floats": (ctypes.c_int, (*_OF, _POINTER, _POINTER, _POINTER)),
    "ch_base64": (ctypes.c_int, (*_OF, _POINTER, _POINTER, _POINTER)),
    "ch_uuids": (ctypes.c_int, (*_OF, _POINTER, _POINTER, _POINTER)),
    "ch_distinct": (_COUNT, (*_OF, _POINTER, _POINTER)),
    "ch_listed": (_COUNT, (*_OF, _POINTER)),
}


@cache
def library() -> ctypes.CDLL | None:
    """The functions of ``scan.c``; None if they were not compiled, or are not wanted."""
    if os.environ.get(OFF) == "0":
        return None
    try:
        found = ctypes.CDLL(str(Path(__file__).with_name(_NAME)))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(found, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError):
        return None
    return found
