"""Finds a statement's clauses: enough of ClickHouse's grammar to serve HTTP, and no more.

The HTTP interface has to know four things of a query text: what kind of statement it is, which FORMAT it names,
where the rows of an INSERT begin, and where a clause such as ``INTO OUTFILE`` would go. A tokenizer (strings,
quoted identifiers, comments, heredocs, brackets) answers them; the engine parses everything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

_TOKEN = re.compile(
    rb"""
    (?P<space>\s+|--[^\n]*|\#[!\ ][^\n]*|/\*.*?\*/)
  | (?P<string>'[^'\\]*(?:(?:\\.|'')[^'\\]*)*')
  | (?P<quoted>"[^"\\]*(?:(?:\\.|"")[^"\\]*)*"|`[^`\\]*(?:(?:\\.|``)[^`\\]*)*`)
  | (?P<heredoc>\$(?P<tag>\w*)\$.*?\$(?P=tag)\$)
  | (?P<word>[A-Za-z_\x80-\xff][\w$\x80-\xff]*)
  | (?P<number>\d[\w.]*)
  | (?P<symbol>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_OPEN, _CLOSE = b"([{", b")]}"
_NAMED = (b"INTO", b"FORMAT")
"""Words after which another one is a name."""


class Token(NamedTuple):
    """One token: its kind, its bytes, its place in the text and the number of brackets open around it."""

    kind: str
    text: bytes
    start: int
    end: int
    depth: int

    @property
    def upper(self) -> bytes:
        """The token in capitals if it is a bare word, else nothing: what a keyword is compared with."""
        return self.text.upper() if self.kind == "word" else b""


def tokens(text: bytes) -> Iterator[Token]:
    """Yield the tokens of ``text`` without spaces and comments. An unclosed string comes out as symbols."""
    depth = 0
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or "symbol"
        if kind == "tag":
            kind = "heredoc"
        if kind == "space":
            continue
        piece = match.group()
        if kind == "symbol" and piece in _CLOSE:
            depth = max(depth - 1, 0)
        yield Token(kind, piece, match.start(), match.end(), depth)
        if kind == "symbol" and piece in _OPEN:
            depth += 1


@dataclass(frozen=True)
class Statement:
    """The properties of a statement that matter to HTTP; offsets are bytes into the analysed text.

    ``kind`` is the first keyword in capitals, with ``SELECT`` for every query that is a select (``WITH``, brackets,
    ``FROM`` first) and ``INSERT`` for a ``WITH … INSERT`` too. ``end`` is where the statement stops: before a closing
    semicolon, or before the rows of an INSERT, which begin at ``rows_at``.
    """

    kind: str
    end: int
    format: str | None = None
    format_at: int | None = None
    settings_at: int | None = None
    rows_at: int | None = None
    has_select: bool = False
    input_call: tuple[int, int] | None = None
    outfile: bool = False
    infile: bool = False
    second_statement: bool = False

    @property
    def takes_rows(self) -> bool:
        """Whether the request carries rows: an INSERT with a format that is not fed by its own SELECT alone."""
        named = self.kind == "INSERT" and self.format is not None and not self.infile
        return named and (not self.has_select or self.input_call is not None)


def analyse(text: bytes) -> Statement:
    """Find the clauses of the one statement in ``text``; for an INSERT the text may continue with rows of any bytes."""
    stream = tokens(text)
    first = next(stream, None)
    if first is None:
        return Statement("", 0)
    kind = (first.upper or first.text).decode("latin-1")
    if first.text == b"(" or kind in ("WITH", "FROM"):
        kind = "SELECT"
    if kind == "INSERT":
        return _analyse_insert(text, stream)
    return _analyse_other(text, kind, first, stream)


def _analyse_other(text: bytes, kind: str, first: Token, stream: Iterator[Token]) -> Statement:
    before, found = first, Statement(kind, 0)
    after_format = False
    for token in stream:
        if token.text == b";" and token.depth == 0:
            more = any(following.text != b";" for following in stream)
            return replace(found, end=before.end, second_statement=more)
        word = token.upper
        if token.depth == 0 and word:
            previous = before.upper
            if word == b"INSERT" and first.upper == b"WITH" and previous != b"AS":
                return _analyse_insert(text, stream)
            if word == b"SETTINGS" and found.format_at is None:
                found = replace(found, settings_at=token.start)
            elif word == b"OUTFILE" and previous == b"INTO":
                found = replace(found, outfile=True)
            if previous == b"FORMAT":
                found = replace(found, format=token.text.decode("latin-1"), format_at=before.start)
            elif word == b"SETTINGS":
                after_format = found.format is not None
            elif found.format is not None and not after_format:
                found = replace(found, format=None, format_at=None)  # the word FORMAT was a name, not a clause
        before = token
    return replace(found, end=before.end)


def _analyse_insert(text: bytes, stream: Iterator[Token]) -> Statement:
    previous: Token | None = None
    found, end = Statement("INSERT", 0), 0
    input_open: int | None = None
    for token in stream:
        word = token.upper
        last = previous.upper if previous is not None else b""
        if input_open is not None and token.text == b")" and token.depth == 0:
            found, input_open = replace(found, input_call=(input_open, token.end)), None
        if previous is not None and last == b"INPUT" and token.text == b"(" and found.has_select:
            input_open = previous.start
            if token.depth:  # inside a subquery: its closing bracket is found by depth
                found = replace(found, input_call=(previous.start, _closing(text, token.start)))
                input_open = None
        if token.depth == 0:
            if token.text == b";":
                more = found.has_select and next(stream, None) is not None
                return replace(found, end=end, second_statement=more, rows_at=_rows_at(text, token.end))
            if word in (b"SELECT", b"WITH", b"WATCH"):
                found = replace(found, has_select=True)
            elif word == b"SETTINGS" and not found.has_select:
                found = replace(found, settings_at=token.start)
            elif word == b"INFILE" and last == b"FROM":
                found = replace(found, infile=True)
            elif word == b"VALUES" and previous is not None and not found.has_select and last not in _NAMED:
                rows = len(text) - len(text[token.end :].lstrip())
                return replace(found, end=token.start, format="Values", format_at=token.start, rows_at=rows)
            elif previous is not None and last == b"FORMAT" and previous.depth == 0 and word:
                name, at = token.text.decode("latin-1"), previous.start
                return replace(found, end=at, format=name, format_at=at, rows_at=_rows_at(text, token.end))
        previous, end = token, token.end
    return replace(found, end=end, rows_at=_rows_at(text, end))


def _rows_at(text: bytes, at: int) -> int:
    """The place where rows begin: after blanks and one line break."""
    while text[at : at + 1] in (b" ", b"\t", b"\f"):
        at += 1
    return at + len(text[at : at + 2]) - len(text[at : at + 2].removeprefix(b"\r").removeprefix(b"\n"))


def _closing(text: bytes, opening: int) -> int:
    depth = None
    for token in tokens(text[opening:]):
        if depth is None:
            depth = token.depth
        elif token.text == b")" and token.depth == depth:
            return opening + token.end
    return len(text)


def quote_string(value: str) -> str:
    """A ClickHouse string literal."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def quote_identifier(name: str) -> str:
    """A quoted ClickHouse identifier."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"
