"""Whether one column type can be changed into a wider one without losing a value."""

import re

from ch_sink.types.chtype import ChType, parse_type

__all__ = ["widened"]


def widened(old: str, new: str, *, may_be_nullable: bool = True) -> str | None:
    """The type that holds every value of ``old`` and of ``new``, where it differs from ``old`` and is of its family.

    None if ``old`` is wide enough already, or where the two are of different families (a String column for a
    number is the user's choice and stays). Null is only taken over where ``may_be_nullable``.
    """
    before, after = parse_type(old), parse_type(new)
    base = _wider(before.bare, after.bare)
    inner = base or _text_of_bare(old)
    nullable = before.nullable or (after.nullable and may_be_nullable and _can_be_null(before.bare))
    if base is None and (nullable == before.nullable or not _same_family(before.bare, after.bare)):
        return None
    text = f"Nullable({inner})" if nullable else inner
    if before.name == "LowCardinality":
        text = f"LowCardinality({text})"
    return None if parse_type(text) == before else text


def _can_be_null(tree: ChType) -> bool:
    return tree.name not in ("Array", "Map", "Tuple", "Nested", "JSON", "Object", "Variant", "Dynamic", "Point")


def _text_of_bare(text: str) -> str:
    for wrapper in ("LowCardinality(", "Nullable("):
        if text.startswith(wrapper):
            return _text_of_bare(text[len(wrapper) : -1].strip())
    return text


def _same_family(old: ChType, new: ChType) -> bool:
    return _family(old.name) == _family(new.name)


def _family(name: str) -> str:
    return "Date" if name in ("Date", "Date32") else re.sub(r"\d+$", "", name) if name != "DateTime64" else "DateTime"


def _wider(old: ChType, new: ChType) -> str | None:
    if old.name == "Date" and new.name == "Date32":
        return "Date32"
    if not _same_family(old, new):
        return None
    kind = _family(old.name)
    if kind in ("Int", "UInt", "Float"):
        return new.name if _bits(new) > _bits(old) else None
    if kind == "Decimal":
        whole = max(old.precision - old.scale, new.precision - new.scale)
        scale = max(old.scale, new.scale)
        if (whole + scale, scale) == (old.precision, old.scale) or whole + scale > 76:
            return None
        return f"Decimal({whole + scale}, {scale})"
    if old.name == new.name == "DateTime64" and new.precision > old.precision:
        zone = f", '{old.timezone}'" if old.timezone else ""
        return f"DateTime64({new.precision}{zone})"
    return None


def _bits(tree: ChType) -> int:
    return int(re.sub(r"\D", "", tree.name))
