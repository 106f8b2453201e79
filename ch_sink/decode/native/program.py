"""Programs of the scanner: which keys a record has, in which order, and what becomes of each value."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

__all__ = ["Keep", "Member", "Members", "Program", "Skip", "keys_of", "program"]

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
    closed: bool = False
    """No field may occur that is not among ``of``; else it is skipped."""


Member = Skip | Keep | Members
Path = tuple[str, ...]


@dataclass(slots=True)
class Program:
    """What the scanner follows."""

    texts: bytearray = field(default_factory=bytearray)
    rows: list[list[int]] = field(default_factory=list)
    slots: dict[Path, int] = field(default_factory=dict)
    """The slots of fields by path, and of objects, whose kind tells whether they are there."""
    steps: npt.NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, dtype=np.uint32))

    def add(self, text: bytes, action: int, slot: int = 0) -> list[int]:
        """A step."""
        row = [len(self.texts), len(text), action, slot, 0, 0]
        self.texts += text
        self.rows.append(row)
        return row

    def slot(self, path: Path) -> int:
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


def _object(made: Program, examples: list[bytes], wanted: Members, path: Path) -> bool:
    """Adds the steps of an object whose text in some records is given."""
    found = [keys_of(example) for example in examples]
    first = found[0] if found else None
    if not first or not wanted.required <= first.keys() or (wanted.closed and not first.keys() <= wanted.of.keys()):
        return False
    # The brace of an inner object is the scanner's, which has to see null in its place.
    text = b"" if path else b"{"
    for name in first:
        text += b'"' + name.encode() + b'":'
        member = wanted.of.get(name, Skip())
        own = (*path, name)
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
