"""The compiled scanner, if it was built for this machine: its functions, its programs, the texts that it reads."""

import ctypes
import logging
import os
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

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
        log.warning("%s was built from other C sources: decoding runs without it; `make venv` compiles it", _NAME)
        return None
    return found


@cache
def joiner() -> Callable[[list[bytes], int], bytes] | None:
    """A function that joins texts and writes where each ends to this address; None without the library.

    It raises TypeError if one is not a bytes object.
    """
    found = library()
    if found is None:
        return None
    join = ctypes.PyDLL(found._name, handle=found._handle).ch_joined  # holds the interpreter's lock
    join.restype, join.argtypes = ctypes.py_object, (ctypes.py_object, _POINTER)
    return join


def address(array: Any) -> int:
    """The place of an array's values."""
    found: int = array.__array_interface__["data"][0]
    return found


class Joined(list[bytes]):
    """Texts that are joined once for all callers. Raises TypeError then, if one is not a bytes object."""

    @cached_property
    def _together(self) -> tuple[bytes, npt.NDArray[np.int64]]:
        join = joiner()
        if join is None:
            return b"".join(self), np.cumsum(np.fromiter(map(len, self), dtype=np.int64, count=len(self)))
        ends = np.empty(len(self), dtype=np.int64)
        return join(self, address(ends)), ends

    @property
    def data(self) -> bytes:
        """All texts, one behind the other."""
        return self._together[0]

    @property
    def ends(self) -> npt.NDArray[np.int64]:
        """The end of each."""
        return self._together[1]

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """How long each is."""
        return np.diff(self.ends, prepend=0)


def joined(texts: Sequence[bytes]) -> Joined:
    """The texts, which are not copied if they are joined already."""
    return texts if isinstance(texts, Joined) else Joined(texts)


_NOTHING, _SKIP, _KEEP, _OPEN, _NONE = range(5)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Skip:
    """Any value, not looked at."""


@dataclass(frozen=True, slots=True)
class Keep:
    """A value that gets a slot. ``text``: the only one that it may be; it needs no slot."""

    text: bytes = b""


@dataclass(frozen=True, slots=True)
class Members:
    """An object or null."""

    of: "Mapping[str, Member]"
    required: frozenset[str] = frozenset()
    others: "Member | None" = Skip()
    """The reading of fields that are not among ``of``; None: none may occur."""


Member = Skip | Keep | Members
Place = tuple[str, ...]


@dataclass(slots=True)
class Program:
    """Instructions of the scanner."""

    texts: bytearray = field(default_factory=bytearray)
    rows: list[list[int]] = field(default_factory=list)
    slots: dict[Place, int] = field(default_factory=dict)
    """The slots of fields by path, and of objects, whose kind tells whether they are there."""
    steps: npt.NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, dtype=np.uint32))

    def add(self, text: bytes, action: int, slot: int = 0) -> list[int]:
        """A step."""
        row = [len(self.texts), len(text), action, slot, 0, 0]
        self.texts += text
        self.rows.append(row)
        return row

    def slot(self, path: Place) -> int:
        """A new slot."""
        return self.slots.setdefault(path, len(self.slots))


def keys_of(raw: bytes) -> dict[str, bytes] | None:
    """The members of an object as text, in their order; None if it is not written as machines do."""
    try:
        found = {name: bytes(value) for name, value in _fields.decode(raw).items()}
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None
    written = b",".join([msgspec.json.encode(name) + b":" + value for name, value in found.items()])
    # No white space, no key twice, and every key as it is looked for: without escapes.
    return found if raw == b"{" + written + b"}" and not any("\\" in n or '"' in n for n in found) else None


def program(payloads: Sequence[bytes], root: Members) -> Program | None:
    """The program that these payloads show; None if they cannot be read by one."""
    made = Program()
    if not _object(made, list(payloads), root, ()):
        return None
    made.steps = np.array(made.rows, dtype=np.uint32)
    return made


def _object(made: Program, examples: list[bytes], wanted: Members, path: Place) -> bool:
    """Adds the steps of an object whose text in some records is given."""
    found = [keys_of(example) for example in examples]
    first = found[0] if found else None
    if not first or not wanted.required <= first.keys():
        return False
    # The brace of an inner object is the scanner's, which has to see null in its place.
    text = b"" if path else b"{"
    for name in first:
        text += b'"' + name.encode() + b'":'
        member = wanted.of.get(name, wanted.others)
        own = (*path, name)
        if member is None:
            return False
        if isinstance(member, Skip):
            made.add(text, _SKIP)
        elif isinstance(member, Keep) and member.text:
            made.add(text + member.text, _NOTHING)
        elif isinstance(member, Keep):
            made.add(text, _KEEP, made.slot(own))
        else:
            shown = [raw for one in found if one is not None and (raw := one.get(name)) is not None and raw != b"null"]
            slot = made.slot(own)
            if shown:
                step = made.add(text, _OPEN, slot)
                if not _object(made, shown, member, own):
                    return False
                step[4], step[5] = len(made.slots) - slot, len(made.rows)
            else:
                # Only null is known here.
                step = made.add(text, _NONE, slot)
                step[4], step[5] = 1, len(made.rows)
        text = b","
    made.add(b"}", _NOTHING)
    return True
