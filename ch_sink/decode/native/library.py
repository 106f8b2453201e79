"""The compiled scanner, if it was built for this machine."""

import ctypes
import logging
import os
import sys
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["OFF", "address", "joiner", "library"]

log = logging.getLogger("ch_sink")

OFF = "CH_SINK_NATIVE"
"""An environment variable: ``0`` if the scanner must not be used."""
_NAME = "libscan.so.1"
_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_int64
_CELLS = (_POINTER, _COUNT, _COUNT)
_OF = (_POINTER, *_CELLS)
"""The records' text, and the cells of one slot."""
_FUNCTIONS: dict[str, tuple[object, tuple[object, ...]]] = {
    "ch_source": (ctypes.c_uint32, ()),
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
    "ch_distinct": (_COUNT, (*_OF, _POINTER, _POINTER)),
    "ch_listed": (_COUNT, (*_OF, _POINTER)),
    "ch_avro": (
        _COUNT,
        (_POINTER, _POINTER, _COUNT, _COUNT, _POINTER, _COUNT, _POINTER, _POINTER, _POINTER, _POINTER),
    ),
    "ch_avro_texts": (ctypes.c_int, (_POINTER, _POINTER, _COUNT, _POINTER, _POINTER, _POINTER, _POINTER)),
    "ch_avro_distinct": (_COUNT, (_POINTER, _POINTER, _COUNT, _POINTER, _POINTER, _POINTER)),
    "ch_documents": (
        None,
        (*_OF, _POINTER, ctypes.c_uint32, _POINTER, _POINTER, _COUNT, *[_POINTER] * 7),
    ),
    "ch_plain": (ctypes.c_int, (_POINTER, _POINTER, _COUNT)),
    "ch_parts": (None, (_POINTER, _POINTER, _COUNT, _COUNT, _POINTER, _POINTER)),
}


@cache
def library() -> ctypes.CDLL | None:
    """The functions of the C files; None if they were not compiled, or are not wanted."""
    if os.environ.get(OFF) == "0" or sys.byteorder != "little":
        return None
    here = Path(__file__)
    try:
        source = zlib.crc32(b"".join(one.read_bytes() for one in sorted(here.parent.glob("*.[ch]"))))
        found = ctypes.CDLL(str(here.with_name(_NAME)))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(found, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError):
        return None
    if found.ch_source() != source:
        log.warning("%s is of another version of the C files: decoding does without it; `make venv` compiles it", _NAME)
        return None
    return found


@cache
def joiner() -> Callable[[list[bytes], int], bytes] | None:
    """A function that joins texts and writes where each ends to this address; None without the library.

    It raises TypeError if one is no bytes object.
    """
    found = library()
    if found is None:
        return None
    join = ctypes.PyDLL(found._name, handle=found._handle).ch_joined  # holds the interpreter's lock
    join.restype, join.argtypes = ctypes.py_object, (ctypes.py_object, _POINTER)
    return join


def address(array: Any) -> int:
    """Where an array's values are."""
    found: int = array.__array_interface__["data"][0]
    return found
