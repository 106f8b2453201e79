"""Types with their times in UTC: in other zones two moments have one text in the hour in which clocks are set back."""

import re

from ch_sink.types.chtype import ChType, parse_type
from ch_sink.types.sql import literal

__all__ = ["in_utc", "text_in_utc"]

_COMPOSED = ("Array", "Map", "Tuple", "Nullable")
_OPAQUE = ("JSON", "Object", "Dynamic", "Variant", "LowCardinality")
"""Types that a CAST may change, or that a profile may not allow in one."""
_TIME = re.compile(r"""DateTime64\((\d)(?:, '[^']*')?\)|\bDateTime\b(?! )(?:\('[^']*'\))?|'(?:[^'\\]|\\.)*'|`[^`]*`""")
"""A time in the text of a type, with its digits; or a text or name, in which there is none."""


def in_utc(kind: str) -> str:
    """The type of the same values with times in UTC; as it is if it has none, or none that a CAST reaches."""
    tree = parse_type(kind)
    if tree.name == "LowCardinality" and "Time" in tree.bare.name:
        return _TIME.sub(_utc, kind.removeprefix("LowCardinality(")[:-1])
    return kind if _is_opaque(tree) else _TIME.sub(_utc, kind)


def text_in_utc(expression: str, kind: str) -> str:
    """SQL that gives a value's text, with its times in UTC."""
    exact = in_utc(kind)
    return f"toString({expression})" if exact == kind else f"toString(CAST({expression}, {literal(exact)}))"


def _is_opaque(tree: ChType) -> bool:
    return tree.name in _OPAQUE or (tree.name in _COMPOSED and any(_is_opaque(item) for item in tree.items))


def _utc(found: re.Match[str]) -> str:
    if found[1]:
        return f"DateTime64({found[1]}, 'UTC')"
    return "DateTime('UTC')" if found[0].startswith("DateTime") else found[0]
