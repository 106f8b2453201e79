"""Updates that state only what changed: change streams' ``updateDescription``, and the oplog's ``patch``.

Both become a list of steps on paths. As in MongoDB, a numeric part of a path is an index if the value there is an
array, else a field's name. Steps are absolute (set, remove, truncate), so applying a re-delivered run of updates again
gives the same document.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from ch_sink.decode.mongodb.values import parse
from ch_sink.errors import DecodeError
from ch_sink.types.converter import shown

Path = tuple[str, ...]
MISSING: Any = type("Missing", (), {"__repr__": lambda self: "MISSING", "__bool__": lambda self: False})()
"""The value at a path that does not exist."""
_MOST_INDEX = 1_000_000
"""No array has an index beyond this, nor do all arrays of a document: it would exceed MongoDB's 16 MB limit."""
_MOST_PARTS = 200
"""Levels of a document, as in `values`."""


@dataclass(frozen=True, slots=True)
class Step:
    """One change: set a path to ``value``, remove it, or cut the array there to ``value`` elements."""

    kind: Literal["set", "remove", "truncate"]
    path: Path
    value: Any = None


@dataclass(frozen=True)
class Update:
    """The steps of one update, in the order in which they are applied."""

    steps: tuple[Step, ...]

    @cached_property
    def _by_field(self) -> dict[str, list[Step]]:
        """The steps by the field in which they are; those at the document itself are in each."""
        found: dict[str, list[Step]] = {step.path[0]: [] for step in self.steps if step.path}
        for step in self.steps:
            for steps in [found[step.path[0]]] if step.path else found.values():
                steps.append(step)
        return found

    def apply(self, document: Any) -> Any:
        """The document after the update; the argument is not changed."""
        draft = _Draft()
        for step in self.steps:
            document = draft.apply(document, step.path, step)
        return document

    def below(self, path: Path) -> "Update | None":
        """The update restricted to the value at a path; None if that value does not change.

        A step at the path itself has the empty path; one above it becomes one at it.
        """
        steps = self._by_field.get(path[0]) if path else self.steps
        if steps is None:
            steps = [step for step in self.steps if not step.path]
        found = [relative for step in steps if (relative := _relative(step, path)) is not None]
        return Update(tuple(found)) if found else None

    @property
    def whole(self) -> bool:
        """Whether the first step sets the whole value, so that no earlier value is needed."""
        return bool(self.steps) and self.steps[0].path == () and self.steps[0].kind != "truncate"


def at(document: Any, path: Path) -> Any:
    """The value at a path; MISSING if there is none."""
    for part in path:
        if isinstance(document, dict):
            document = document.get(part, MISSING)
        elif isinstance(document, list) and (index := _index(part)) is not None and index < len(document):
            document = document[index]
        else:
            return MISSING
    return document


def from_description(description: Any) -> Update:
    """The update of a change stream event's ``updateDescription``. Raises DecodeError.

    Arrays are truncated first, then fields removed, then set.
    """
    steps: list[Step] = []
    for cut in _listed(description.truncatedArrays, "truncatedArrays"):
        size = cut.get("size", cut.get("newSize")) if isinstance(cut, Mapping) else None
        if not isinstance(size, int) or not isinstance(cut.get("field"), str):
            raise DecodeError(f"updateDescription.truncatedArrays: {shown(cut)} names no field and size")
        steps.append(Step("truncate", _path(cut["field"]), size))
    for name in _listed(description.removedFields, "removedFields"):
        if not isinstance(name, str):
            raise DecodeError(f"updateDescription.removedFields: {shown(name)} is not a field's name")
        steps.append(Step("remove", _path(name)))
    fields = {} if description.updatedFields is None else parse(description.updatedFields)
    if not isinstance(fields, dict):
        raise DecodeError(f"updateDescription.updatedFields: expected a document, found {shown(fields)}")
    steps += [Step("set", _path(name), value) for name, value in fields.items()]
    return Update(tuple(steps))


def from_patch(patch: Any, key: Any) -> Update:
    """The update of an oplog entry (connectors of the 1.x line): operators, a diff, or a whole document.

    ``key``: the document's ``_id``, which a whole document may leave out. Raises DecodeError.
    """
    found = parse(patch)
    if not isinstance(found, dict):
        raise DecodeError(f"patch: expected a document, found {shown(found)}")
    if "diff" in found and "$v" in found:
        return Update(tuple(_diff(found["diff"], ())))
    operators = [name for name in found if name.startswith("$") and name != "$v"]
    if not operators:
        whole = {name: value for name, value in found.items() if name != "$v"}
        return Update((Step("set", (), whole if "_id" in whole or key is MISSING else {"_id": key, **whole}),))
    steps: list[Step] = []
    for name in operators:
        fields = found[name]
        if name not in ("$set", "$unset") or not isinstance(fields, dict):
            raise DecodeError(f"patch: {name} is not an operator of the oplog", hint="the oplog has $set and $unset")
        if name == "$unset":
            steps[:0] = [Step("remove", _path(field)) for field in fields]
        else:
            steps += [Step("set", _path(field), value) for field, value in fields.items()]
    return Update(tuple(steps))


def _diff(diff: Any, path: Path) -> list[Step]:
    """Steps of an oplog entry of version 2: ``{d: removed, u: updated, i: inserted, s<field>: diff of that field}``.

    In a diff of an array (``a: true``) ``l`` is the new length, and ``u`` and ``s`` precede indexes.
    """
    if not isinstance(diff, dict):
        raise DecodeError(f"patch: not a diff: {shown(diff)}")
    steps: list[Step] = []
    array = diff.get("a") is True
    for name, part in diff.items():
        if array and name == "a":
            continue
        if array and name == "l":
            steps.insert(0, Step("truncate", path, int(part)))
        elif array and name[:1] == "u":
            steps.append(Step("set", (*path, name[1:]), part))
        elif not array and name == "d":
            steps += [Step("remove", (*path, field)) for field in part]
        elif not array and name in ("u", "i"):
            steps += [Step("set", (*path, field), value) for field, value in part.items()]
        elif name[:1] == "s":
            steps += _diff(part, (*path, name[1:]))
        else:
            raise DecodeError(f"patch: a diff has no section {name!r}")
    return steps


def _listed(given: Any, what: str) -> Sequence[Any]:
    """An optional list, which may also arrive as JSON text."""
    if isinstance(given, str):
        given = parse(given)
    if given is None:
        return ()
    if not isinstance(given, list):
        raise DecodeError(f"updateDescription.{what}: expected a list, found {shown(given)}")
    return given


def _path(dotted: str) -> Path:
    path = tuple(dotted.split(".", _MOST_PARTS))
    if len(path) > _MOST_PARTS:
        raise DecodeError(f"an update's path has more than {_MOST_PARTS} parts: {shown(dotted[:100])}")
    return path


def _relative(step: Step, path: Path) -> Step | None:
    """The step relative to the value at ``path``; None if it does not touch that value."""
    n = len(path)
    if step.path[:n] == path:
        return Step(step.kind, step.path[n:], step.value)
    if path[: len(step.path)] != step.path:
        return None
    rest = path[len(step.path) :]
    if step.kind == "set":
        inside = at(step.value, rest)
        return Step("remove", ()) if inside is MISSING else Step("set", (), inside)
    if step.kind == "truncate":
        index = _index(rest[0])
        return Step("remove", ()) if index is not None and index >= step.value else None
    return Step("remove", ())


def _index(part: str) -> int | None:
    return int(part) if part.isascii() and part.isdigit() and len(part) <= 7 and int(part) < _MOST_INDEX else None


class _Draft:
    """A document that changes: what a step touches is copied once, and then changed in place."""

    def __init__(self) -> None:
        self._own: dict[int, Any] = {}
        """The copies, by identity."""
        self._gaps = _MOST_INDEX

    def apply(self, value: Any, path: Path, step: Step, at: int = 0) -> Any:
        """The value with the step applied at ``path`` from the part ``at`` on. Raises DecodeError."""
        if at == len(path):
            if step.kind == "set":
                return step.value
            if step.kind == "remove":
                return MISSING
            if isinstance(value, list):
                value = self._owned(value)
                del value[step.value :]
            return value
        if isinstance(value, list):
            index = _index(path[at])
            return value if index is None else self._in_array(value, index, path, step, at)
        if not isinstance(value, dict):
            if step.kind != "set":
                return value
            value = {}  # missing, or set by a later update of a re-delivered stretch
        name = path[at]
        inner = self.apply(value.get(name, MISSING), path, step, at + 1)
        if inner is MISSING and name not in value:
            return value
        value = self._owned(value)
        if inner is MISSING:
            del value[name]
        else:
            value[name] = inner
        return value

    def _in_array(self, value: list[Any], index: int, path: Path, step: Step, at: int) -> list[Any]:
        gap = index + 1 - len(value)
        if gap > 0:
            if step.kind != "set":
                return value
            self._gaps -= gap
            if self._gaps < 0:
                raise DecodeError(f"the update would add more than {_MOST_INDEX} elements to arrays")
        value = self._owned(value)
        value.extend([None] * gap)
        inner = self.apply(value[index], path, step, at + 1)
        # An array has no gaps: a removed element becomes null.
        value[index] = None if inner is MISSING else inner
        return value

    def _owned(self, value: Any) -> Any:
        if id(value) not in self._own:
            value = value.copy()
            self._own[id(value)] = value
        return value
