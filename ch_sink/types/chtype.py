"""ClickHouse type texts as trees (``Nullable(DateTime64(3, 'UTC'))`` → nested `ChType`), wider ones, those in UTC."""

import re
from dataclasses import dataclass
from functools import lru_cache

from ch_sink.errors import TableError
from ch_sink.types.sql import Kind, Token, closing, literal, quote, tokenize


@dataclass(frozen=True, slots=True)
class ChType:
    """One node of a type.

    ``name`` is the family as the server writes it (``Decimal``, ``Tuple``). ``arguments`` holds nested types,
    numbers and strings in order; ``names`` the field names of a named Tuple or Nested, aligned with them;
    ``values`` the pairs of an Enum; ``rest`` the words that are not types (an aggregate function's name,
    JSON's ``max_dynamic_paths=…``).
    """

    name: str
    arguments: "tuple[ChType | int | str, ...]" = ()
    names: tuple[str, ...] = ()
    values: tuple[tuple[str, int], ...] = ()
    rest: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The type as SQL."""
        parts = list(self.rest) + [f"{literal(label)} = {number}" for label, number in self.values]
        for place, part in enumerate(self.arguments):
            text = literal(part) if isinstance(part, str) else str(part)
            parts.append(f"{quote(self.names[place])} {text}" if self.names else text)
        return f"{self.name}({', '.join(parts)})" if parts else self.name

    @property
    def nullable(self) -> bool:
        """True for Nullable(…) and LowCardinality(Nullable(…))."""
        return self.name == "Nullable" or (self.name == "LowCardinality" and self.items[0].nullable)

    @property
    def bare(self) -> "ChType":
        """The type without Nullable and LowCardinality around it."""
        return self.items[0].bare if self.name in ("Nullable", "LowCardinality") else self

    @property
    def items(self) -> "tuple[ChType, ...]":
        """The nested types."""
        return tuple(a for a in self.arguments if isinstance(a, ChType))

    def holds(self, name: str) -> bool:
        """Whether the type, or one within it, is of this family."""
        return self.name == name or any(item.holds(name) for item in self.items)

    @property
    def precision(self) -> int:
        """Digits of a Decimal, sub-second digits of a DateTime64 or Time64, bytes of a FixedString; else 0."""
        first = self.arguments[0] if self.arguments else 0
        return first if isinstance(first, int) else 0

    @property
    def scale(self) -> int:
        """Digits after the point of a Decimal; 0 for everything else."""
        second = self.arguments[1] if self.name == "Decimal" and len(self.arguments) > 1 else 0
        return second if isinstance(second, int) else 0

    @property
    def timezone(self) -> str | None:
        """Time zone of a DateTime or DateTime64, None if the server's (or session's) holds."""
        return next((a for a in self.arguments if isinstance(a, str)), None) if "DateTime" in self.name else None


_DECIMAL_DIGITS = {"Decimal32": 9, "Decimal64": 18, "Decimal128": 38, "Decimal256": 76}
_ENUMS = ("Enum", "Enum8", "Enum16")


@lru_cache(maxsize=4096)
def parse_type(text: str) -> ChType:
    """The tree of a type text. Raises TableError if it is not a type.

    ``DecimalN(S)`` is given as ``Decimal(P, S)``, its precision filled in, as ``system.columns`` writes it.
    """
    tokens = tokenize(text)
    if not tokens:
        raise TableError("an empty column type")
    node, place = _type(text, tokens, 0)
    if place != len(tokens):
        raise TableError(f"cannot read column type {text!r}: unexpected {tokens[place].value!r}")
    return node


def _type(text: str, tokens: list[Token], place: int) -> tuple[ChType, int]:
    if place >= len(tokens) or tokens[place].kind not in (Kind.NAME, Kind.QUOTED):
        raise TableError(f"cannot read column type {text!r}")
    name = tokens[place].value
    place += 1
    if place >= len(tokens) or not tokens[place].is_symbol("("):
        return ChType("Decimal", (10, 0)) if name == "Decimal" else ChType(name), place
    end = closing(tokens, place)
    parts = _parts(tokens[place + 1 : end])
    if name in _ENUMS:
        return ChType("Enum8" if name == "Enum" else name, values=_enum(text, parts)), end + 1
    if name in ("AggregateFunction", "SimpleAggregateFunction"):
        nested = tuple(_whole(text, part) for part in parts[1:])
        return ChType(name, nested, rest=(_source(text, parts[0]),)), end + 1
    if name in ("JSON", "Object", "Dynamic"):
        return ChType(name, rest=tuple(_source(text, part) for part in parts)), end + 1
    if name in _DECIMAL_DIGITS:
        return ChType("Decimal", (_DECIMAL_DIGITS[name], int(parts[0][0].value))), end + 1
    if name == "Decimal" and len(parts) == 1:
        return ChType("Decimal", (int(parts[0][0].value), 0)), end + 1
    return _plain(text, name, parts), end + 1


def _plain(text: str, name: str, parts: list[list[Token]]) -> ChType:
    arguments: list[ChType | int | str] = []
    names: list[str] = []
    for part in parts:
        first = part[0]
        if first.kind is Kind.NUMBER:
            arguments.append(int(first.value))
        elif first.kind is Kind.STRING:
            arguments.append(first.value)
        elif len(part) > 1 and part[1].kind in (Kind.NAME, Kind.QUOTED):
            names.append(first.value)
            arguments.append(_whole(text, part[1:]))
        else:
            arguments.append(_whole(text, part))
    return ChType(name, tuple(arguments), tuple(names))


def _whole(text: str, part: list[Token]) -> ChType:
    node, place = _type(text, part, 0)
    if place != len(part):
        raise TableError(f"cannot read column type {text!r}: unexpected {part[place].value!r}")
    return node


def _enum(text: str, parts: list[list[Token]]) -> tuple[tuple[str, int], ...]:
    pairs: list[tuple[str, int]] = []
    for part in parts:
        # 'name' = 1, 'name' = -1, or 'name' alone, which continues the numbering.
        if part[0].kind is not Kind.STRING:
            raise TableError(f"cannot read column type {text!r}: an Enum's values must be strings")
        digits = "".join(t.value for t in part[2:])
        pairs.append((part[0].value, int(digits) if digits else (pairs[-1][1] + 1 if pairs else 1)))
    return tuple(pairs)


def _source(text: str, part: list[Token]) -> str:
    return text[part[0].start : part[-1].end]


def _parts(tokens: list[Token]) -> list[list[Token]]:
    depth = 0
    parts: list[list[Token]] = [[]]
    for token in tokens:
        depth += token.is_symbol("(") - token.is_symbol(")")
        if depth == 0 and token.is_symbol(","):
            parts.append([])
        else:
            parts[-1].append(token)
    return [part for part in parts if part]


_NEVER_NULL = ("Array", "Map", "Tuple", "Nested", "JSON", "Object", "Variant", "Dynamic", "Point")
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


def text_type(old: str) -> str:
    """The type of a column of text in the place of this one: nullable if this one is."""
    return "Nullable(String)" if parse_type(old).nullable else "String"


def _utc(found: re.Match[str]) -> str:
    if found[1]:
        return f"DateTime64({found[1]}, 'UTC')"
    return "DateTime('UTC')" if found[0].startswith("DateTime") else found[0]


WHOLE_RANGE = 7
"""Digits of a second up to which a DateTime64 holds every year; more hold fewer years, so they make no wider type."""


def widened(old: str, new: str, *, may_be_nullable: bool = True) -> str | None:
    """The type that holds every value of ``old`` and of ``new``, where it differs from ``old`` and is of its family.

    None if ``old`` is wide enough already, or where the two are of different families (a String column for a
    number is the user's choice and stays). Null is only taken over where ``may_be_nullable``.
    """
    before, after = parse_type(old), parse_type(new)
    base = _wider(before.bare, after.bare)
    inner = base or _text_of_bare(old)
    nullable = before.nullable or (after.nullable and may_be_nullable and before.bare.name not in _NEVER_NULL)
    if base is None and (nullable == before.nullable or not _same_family(before.bare, after.bare)):
        return None
    text = f"Nullable({inner})" if nullable else inner
    if before.name == "LowCardinality":
        text = f"LowCardinality({text})"
    return None if parse_type(text) == before else text


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
    if old.name == new.name == "DateTime64" and old.precision < new.precision <= WHOLE_RANGE:
        zone = f", '{old.timezone}'" if old.timezone else ""
        return f"DateTime64({new.precision}{zone})"
    return None


def _bits(tree: ChType) -> int:
    return int(re.sub(r"\D", "", tree.name))
