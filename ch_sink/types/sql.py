"""ClickHouse SQL texts: quoting, and tokens as the server formats them in its system tables.

Enough of the lexical rules to take such a text apart without ever cutting through a string, a quoted name or a
bracket; not a parser of statements.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum

from ch_sink.errors import TableError


class Kind(StrEnum):
    """The kind of a token."""

    NAME = "name"
    QUOTED = "quoted name"
    STRING = "string"
    NUMBER = "number"
    SYMBOL = "symbol"


@dataclass(frozen=True, slots=True)
class Token:
    """One token: ``text[start:end]`` of the source; ``value`` has quotes and escapes removed."""

    kind: Kind
    value: str
    start: int
    end: int

    def is_symbol(self, symbol: str) -> bool:
        return self.kind is Kind.SYMBOL and self.value == symbol

    def is_word(self, *words: str) -> bool:
        """True for an unquoted name that equals one of the words, in any letter case."""
        return self.kind is Kind.NAME and self.value.upper() in words


_PATTERN = re.compile(
    r"""
    (?P<space>\s+)
  | (?P<string>'(?:[^'\\]|\\.|'')*')
  | (?P<back>`(?:[^`\\]|\\.|``)*`)
  | (?P<double>"(?:[^"\\]|\\.|"")*")
  | (?P<number>0[xX][0-9A-Fa-f]+|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)
  | (?P<name>[^\W\d]\w*)
  | (?P<symbol>->|\|\||!=|<>|<=|>=|==|::|[-+*/%=<>()\[\]{},.;:?@!^&|~$\#])
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "0": "\0", "a": "\a", "v": "\v", "e": "\x1b"}
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|.)", re.DOTALL)
_OPENING = {"(": ")", "[": "]", "{": "}"}


def _unquote(text: str) -> str:
    mark = text[0]
    inner = text[1:-1].replace(mark * 2, "\\" + mark) if mark * 2 in text[1:-1] else text[1:-1]

    def one(match: re.Match[str]) -> str:
        escaped = match.group(1)
        return chr(int(escaped[1:], 16)) if len(escaped) == 3 else _ESCAPES.get(escaped, escaped)

    return _ESCAPE.sub(one, inner) if "\\" in inner else inner


def tokenize(text: str) -> list[Token]:
    """The tokens of ``text``. Raises TableError, quoting the place, if a quote or bracket does not end."""
    return list(_checked(text))


def _checked(text: str) -> Iterator[Token]:
    closing: list[str] = []
    position = 0
    while position < len(text):
        match = _PATTERN.match(text, position)
        if match is None:
            raise TableError(
                f"cannot read this SQL at character {position}: {text[position : position + 40]!r} in {text!r}"
            )
        position = match.end()
        group, value = match.lastgroup, match.group()
        if group == "space":
            continue
        if group == "symbol":
            if value in _OPENING:
                closing.append(_OPENING[value])
            elif value in ")]}" and (not closing or closing.pop() != value):
                raise TableError(f"unbalanced {value!r} at character {match.start()} of {text!r}")
        kind = {
            "string": Kind.STRING,
            "back": Kind.QUOTED,
            "double": Kind.QUOTED,
            "number": Kind.NUMBER,
            "name": Kind.NAME,
        }.get(group or "", Kind.SYMBOL)
        yield Token(kind, _unquote(value) if value[0] in "'`\"" else value, match.start(), match.end())
    if closing:
        raise TableError(f"missing {closing[-1]!r} at the end of {text!r}")


def split_commas(text: str) -> list[str]:
    """``text`` cut at the commas outside every bracket, stripped; empty for an empty text."""
    return [text[first.start : last.end] for first, last in _spans(tokenize(text))]


def _spans(tokens: list[Token]) -> Iterator[tuple[Token, Token]]:
    depth = 0
    run: list[Token] = []
    for token in tokens:
        if token.kind is Kind.SYMBOL:
            depth += (token.value in "([{") - (token.value in ")]}")
            if token.value == "," and depth == 0:
                if run:
                    yield run[0], run[-1]
                run = []
                continue
        run.append(token)
    if run:
        yield run[0], run[-1]


def identifier(text: str) -> str | None:
    """The column that ``text`` names, quotes removed, dots kept; None if it is anything but a name."""
    tokens = tokenize(text)
    names, dots = tokens[::2], tokens[1::2]
    if len(tokens) % 2 == 0 or not all(t.is_symbol(".") for t in dots):
        return None
    if not all(t.kind in (Kind.NAME, Kind.QUOTED) for t in names):
        return None
    return ".".join(t.value for t in names)


def string_value(text: str) -> str | None:
    """The value of ``text`` if it is one string literal, else None."""
    tokens = tokenize(text)
    return tokens[0].value if len(tokens) == 1 and tokens[0].kind is Kind.STRING else None


def key_expressions(key: str) -> list[str]:
    """The elements of an ORDER BY, PRIMARY KEY or PARTITION BY text: ``(a, toDate(b))`` → ``a``, ``toDate(b)``.

    One pair of outer parentheses or ``tuple(…)`` is removed, as is a trailing ASC or DESC; an element that is
    only a column is given as the column's plain name, without quotes.
    """
    elements = split_commas(key)
    if len(elements) == 1:
        inner = _inside(elements[0])
        if inner is not None:
            elements = split_commas(inner)
    return [_plain(element) for element in elements]


def _inside(text: str) -> str | None:
    tokens = tokenize(text)
    first = 1 if tokens[0].is_word("TUPLE") else 0
    if len(tokens) <= first or not tokens[first].is_symbol("("):
        return None
    depth = 0
    for token in tokens[first:]:
        depth += token.is_symbol("(") - token.is_symbol(")")
        if depth == 0:
            return text[tokens[first].end : token.start] if token is tokens[-1] else None
    return None


def _plain(element: str) -> str:
    tokens = tokenize(element)
    if len(tokens) > 1 and tokens[-1].is_word("ASC", "DESC") and not tokens[-2].is_symbol("."):
        element = element[: tokens[-2].end]
    inner = _inside(element)
    if inner is not None and not tokens[0].is_word("TUPLE") and (name := identifier(inner)) is not None:
        return name
    return identifier(element) or element


def columns_in(expression: str, columns: Collection[str]) -> frozenset[str]:
    """The columns among ``columns`` that occur in an expression, by identifier.

    ``t.a`` counts as the column of that name, else as its longest prefix that is a column (a tuple's element,
    a map's keys). Function names are left out.
    """
    found: set[str] = set()
    tokens = tokenize(expression)
    place = 0
    while place < len(tokens):
        if tokens[place].kind not in (Kind.NAME, Kind.QUOTED):
            place += 1
            continue
        parts = [tokens[place].value]
        place += 1
        while place + 1 < len(tokens) and tokens[place].is_symbol("."):
            if tokens[place + 1].kind not in (Kind.NAME, Kind.QUOTED):
                break
            parts.append(tokens[place + 1].value)
            place += 2
        if len(parts) == 1 and place < len(tokens) and tokens[place].is_symbol("("):
            continue
        for length in range(len(parts), 0, -1):
            name = ".".join(parts[:length])
            if name in columns:
                found.add(name)
                break
    return frozenset(found)


def closing(tokens: list[Token], opening: int) -> int:
    """The place of the parenthesis that closes the one at ``opening``. Raises TableError if there is none."""
    depth = 0
    for place in range(opening, len(tokens)):
        depth += tokens[place].is_symbol("(") - tokens[place].is_symbol(")")
        if depth == 0:
            return place
    raise TableError("missing ')'")  # tokenize has refused such a text already


OWN = "__ch_sink_"
"""Prefix of names in the sink's own queries. A shorter one may be that of a column: names of a SELECT hide columns, and
a tuple or JSON column hides a table of its name."""


def quote(name: str) -> str:
    """A ClickHouse identifier in backquotes."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def literal(text: str) -> str:
    """A ClickHouse string literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\t", "\\t")
    return f"'{escaped}'"
