"""Field names that the connector changed because Avro does not allow them (``field.name.adjustment.mode``)."""

import re
from collections.abc import Iterable

__all__ = ["columns_of"]

_FIRST, _OTHER = re.compile(r"[A-Za-z_]"), re.compile(r"[A-Za-z0-9_]")


def columns_of(fields: Iterable[str], columns: Iterable[str]) -> dict[str, str]:
    """Field → column: of the same name, else the one column whose adjusted name the field has, else its own name."""
    names, there = list(fields), set(columns)
    out = {name: name for name in names}
    left = there.difference(names)
    if left:
        by_adjusted: dict[str, list[str]] = {}
        for column in left:
            for adjusted in {_underscores(column), _codes(column)} - {column}:
                by_adjusted.setdefault(adjusted, []).append(column)
        for name in names:
            found = by_adjusted.get(name, ())
            if name not in there and len(found) == 1:
                out[name] = found[0]
    return out


def _underscores(name: str) -> str:
    """Mode ``avro``: an underscore for every character that is not allowed."""
    if name and not _FIRST.match(name[0]) and _OTHER.match(name[0]):
        name = "_" + name
    return "".join(c if _OTHER.match(c) else "_" for c in name)


def _codes(name: str) -> str:
    """Mode ``avro_unicode``: ``_u002d`` for such a character, the underscore among them."""
    return "".join(
        c if c != "_" and (_OTHER if i else _FIRST).match(c) else "".join(f"_u{u:04x}" for u in _units(c))
        for i, c in enumerate(name)
    )


def _units(character: str) -> list[int]:
    raw = character.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(raw[i : i + 2], "big") for i in range(0, len(raw), 2)]
