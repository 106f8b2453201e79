"""Programs of the compiled reader: which values the datums of a schema have, in which order, and where each goes."""

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ch_sink.decode.avro.schema import Node
from ch_sink.decode.avro.vectors import Want

__all__ = ["Program", "Record", "Shape", "Value", "program", "whole"]

_LONG, _SIZED, _FIXED, _FLOAT, _DOUBLE, _FLAG, _SYMBOL, _OPTIONAL = range(8)
_ACTIONS = {
    "int": _LONG,
    "long": _LONG,
    "string": _SIZED,
    "bytes": _SIZED,
    "fixed": _FIXED,
    "float": _FLOAT,
    "double": _DOUBLE,
    "boolean": _FLAG,
    "enum": _SYMBOL,
}
_MOST_STEPS = 4096
"""Named types within each other may make more steps than a schema has letters."""
_MOST_BYTES = 1 << 62
"""Of one value: what a step can tell."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value in a slot. ``flag``: says which datums have it; -1 for all."""

    node: Node
    slot: int
    flag: int


@dataclass(frozen=True, slots=True)
class Record:
    """A record in the slots of its fields."""

    fields: dict[str, "Shape"]
    flag: int


Shape = Value | Record


@dataclass(slots=True)
class Program:
    """What the compiled reader follows, and what it makes."""

    rows: list[list[int]] = field(default_factory=list)
    slots: int = 0
    flags: int = 0
    shape: Shape | None = None
    steps: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 7), dtype=np.int64))

    def step(self, action: int, slot: int, argument: int) -> list[int]:
        """A step that is added."""
        if len(self.rows) >= _MOST_STEPS or argument >= _MOST_BYTES:
            raise _Unknown
        row = [action, slot, argument, 0, -1, 0, 0]
        self.rows.append(row)
        return row


class _Unknown(Exception):
    """The schema has a value that the compiled reader does not know."""


def program(node: Node, want: Want | None = None) -> Program | None:
    """The program of a type; None if there is none. ``want``: the fields of a record to build."""
    made = Program()
    try:
        made.shape = _kept(made, node, want, -1)
    except (_Unknown, RecursionError):
        return None
    made.steps = np.array(made.rows, dtype=np.int64).reshape(-1, 7)
    return made


@lru_cache(maxsize=1024)
def whole(node: Node) -> Program | None:
    """The program that builds all fields."""
    return program(node)


def _kept(made: Program, node: Node, want: Want | None, flag: int) -> Shape:
    """Adds the steps of a value that is built, which is there where a flag says so."""
    if node.kind == "record":
        fields: dict[str, Shape] = {}
        for member in node.members:
            if want is None or member.name in want:
                fields[member.name] = _kept(made, member.type, want[member.name] if want else None, flag)
            else:
                _skipped(made, member.type)
        return Record(fields, flag)
    if node.null_branch < 0:
        slot = made.slots
        made.slots += 1
        _one(made, node, slot)
        return Value(node, slot, flag)
    own, first = made.flags, made.slots
    made.flags += 1
    step = made.step(_OPTIONAL, first, node.null_branch)
    shape = _kept(made, node.present, want, own)
    step[3:] = made.slots - first, own, made.flags - own, len(made.rows)
    return shape


def _skipped(made: Program, node: Node) -> None:
    """Adds the steps over a value."""
    if node.kind == "record":
        for member in node.members:
            _skipped(made, member.type)
    elif node.null_branch >= 0:
        step = made.step(_OPTIONAL, 0, node.null_branch)
        _skipped(made, node.present)
        step[6] = len(made.rows)
    elif node.kind != "null":
        _one(made, node, -1)


def _one(made: Program, node: Node, slot: int) -> None:
    if node.kind not in _ACTIONS:
        raise _Unknown
    made.step(_ACTIONS[node.kind], slot, len(node.symbols) if node.kind == "enum" else node.size)
