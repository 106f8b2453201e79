"""Row policy statements: CREATE, ALTER, DROP and SHOW [ROW] POLICY, read into plain facts.

The engine cannot store policies, so their statements are read here; the condition itself is left to the engine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ch_sink.local.clickhouse.http_errors import QueryError
from ch_sink.local.clickhouse.sql_text import Token, tokens

__all__ = ["PolicyStatement", "Target", "parse_policy_statement"]

_POLICY = re.compile(rb"POLIC", re.IGNORECASE)
_CLAUSES = (b"FOR", b"USING", b"AS", b"TO", b"IN", b"RENAME", b"WITH", b"FROM")


@dataclass(frozen=True)
class Target:
    """A policy's name and its table; ``database`` is empty for the current one, ``name`` for SHOW POLICIES ON t."""

    name: str
    database: str
    table: str


@dataclass(frozen=True)
class PolicyStatement:
    """What one statement asks for. A clause that it leaves out is None, as ALTER keeps what it does not name.

    ``verb`` is CREATE, ALTER, DROP, SHOW (the names) or SHOW CREATE. ``roles`` are the names after TO, with ``ALL``
    for everybody, and ``excepted`` those after EXCEPT. ``condition`` is "" for ``USING NONE``.
    """

    verb: str
    targets: tuple[Target, ...]
    if_exists: bool = False
    if_not_exists: bool = False
    or_replace: bool = False
    condition: str | None = None
    restrictive: bool | None = None
    roles: tuple[str, ...] | None = None
    excepted: tuple[str, ...] = ()
    rename_to: str | None = None


def parse_policy_statement(text: bytes) -> PolicyStatement | None:
    """Read a row policy statement; None when it is another statement. Raises QueryError (62) when it is damaged."""
    if _POLICY.search(text) is None:
        return None  # almost every statement, and its tokens take as long as the rest of the request
    reader = _Reader(text)
    verb = reader.word(b"CREATE", b"ALTER", b"DROP", b"SHOW")
    if not verb:
        return None
    replace = verb == "CREATE" and bool(reader.word(b"OR")) and bool(reader.word(b"REPLACE"))
    if verb == "SHOW" and reader.word(b"CREATE"):
        verb = "SHOW CREATE"
    reader.word(b"ROW")
    if not reader.word(b"POLICY", b"POLICIES"):
        return None
    if verb == "SHOW":
        reader.targets(named=False)
        return PolicyStatement(verb, reader.found)
    exists = missing = False
    if reader.word(b"IF"):
        missing = bool(reader.word(b"NOT"))
        reader.need(b"EXISTS")
        exists = not missing
        replace = replace or bool(verb == "CREATE" and reader.word(b"OR") and reader.word(b"REPLACE"))
    elif verb == "CREATE" and reader.word(b"OR"):
        reader.need(b"REPLACE")
        replace = True
    reader.targets(named=True)
    reader.clauses()
    return PolicyStatement(
        verb,
        reader.found,
        if_exists=exists,
        if_not_exists=missing,
        or_replace=replace,
        condition=reader.condition,
        restrictive=reader.restrictive,
        roles=reader.roles,
        excepted=reader.excepted,
        rename_to=reader.rename_to,
    )


class _Reader:
    def __init__(self, text: bytes) -> None:
        self._text = text
        self._tokens: Sequence[Token] = [t for t in tokens(text) if t.text != b";" or t.depth]
        self._at = 0
        self.found: tuple[Target, ...] = ()
        self.condition: str | None = None
        self.restrictive: bool | None = None
        self.roles: tuple[str, ...] | None = None
        self.excepted: tuple[str, ...] = ()
        self.rename_to: str | None = None

    def word(self, *options: bytes) -> str:
        """Step over one of these keywords and return it, or return nothing and stay."""
        token = self._peek()
        if token is not None and token.upper in options:
            self._at += 1
            return token.upper.decode()
        return ""

    def need(self, *options: bytes) -> None:
        if not self.word(*options):
            raise self._error(f"expected {' or '.join(o.decode() for o in options)}")

    def targets(self, *, named: bool) -> None:
        """Read ``name [, name] ON [db.]table [, [name ON] [db.]table]``, or only ``[ON table]``."""
        found: list[Target] = []
        names: list[str] = []
        while True:
            if named:
                names.append(self._name())
            if self._symbol(b","):
                continue
            if self.word(b"ON"):
                if self.word(b"CLUSTER"):
                    raise self._unsupported("ON CLUSTER")
                while True:
                    database, table = self._table()
                    found += [Target(name, database, table) for name in (names if named else [""])]
                    if not self._another_table():
                        break
                names = []
            elif named:
                raise self._error("expected ON and a table")
            if not self._symbol(b","):
                self.found = tuple(found)
                return

    def clauses(self) -> None:
        while (token := self._peek()) is not None:
            clause = self.word(*_CLAUSES)
            if clause == "FOR":
                self.need(b"SELECT")
            elif clause == "USING":
                self.condition = self._expression()
            elif clause == "AS":
                self.restrictive = {"RESTRICTIVE": True, "PERMISSIVE": False}.get(
                    self.word(b"RESTRICTIVE", b"PERMISSIVE")
                )
                if self.restrictive is None:
                    raise self._error("expected PERMISSIVE or RESTRICTIVE")
            elif clause == "TO":
                self.roles, self.excepted = self._roles()
            elif clause == "RENAME":
                self.need(b"TO")
                self.rename_to = self._name()
            elif clause in ("IN", "FROM"):
                self._name()  # an access storage: there is only one here
            else:
                raise self._error(f"unexpected {token.text.decode(errors='replace')}")

    def _expression(self) -> str:
        first = self._peek()
        if first is None:
            raise self._error("expected a condition after USING")
        last = first
        while (token := self._peek()) is not None:
            if token.depth == 0 and token.upper in (b"AS", b"TO", b"FOR"):
                break
            last = token
            self._at += 1
        text = self._text[first.start : last.end].decode(errors="surrogateescape")
        return "" if text.upper() == "NONE" else text

    def _roles(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        if self.word(b"NONE"):
            return (), ()
        if self.word(b"ALL"):
            if self.word(b"EXCEPT"):
                return ("ALL",), self._names()
            return ("ALL",), ()
        return self._names(), ()

    def _names(self) -> tuple[str, ...]:
        names = [self._name()]
        while self._symbol(b","):
            names.append(self._name())
        return tuple(names)

    def _another_table(self) -> bool:
        """Whether a comma and a table without a policy name of its own follow."""
        rest = self._tokens[self._at : self._at + 3]
        if not rest or rest[0].text != b",":
            return False
        after = rest[2] if len(rest) > 2 else None
        if after is not None and (after.upper == b"ON" or after.text == b","):
            return False
        self._at += 1
        return True

    def _table(self) -> tuple[str, str]:
        first = self._name(star=True)
        if self._symbol(b"."):
            return first, self._name(star=True)
        return "", first

    def _name(self, *, star: bool = False) -> str:
        token = self._peek()
        if token is None:
            raise self._error("expected a name")
        self._at += 1
        if token.kind in ("word", "quoted", "string") or (star and token.text == b"*"):
            return _unquoted(token)
        raise self._error(f"expected a name instead of {token.text.decode(errors='replace')}")

    def _symbol(self, symbol: bytes) -> bool:
        token = self._peek()
        if token is not None and token.text == symbol:
            self._at += 1
            return True
        return False

    def _peek(self) -> Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _error(self, text: str) -> QueryError:
        token = self._peek()
        place = f"position {token.start + 1}" if token is not None else "the end of the query"
        return QueryError.make(62, "SYNTAX_ERROR", f"Syntax error: failed at {place} of a row policy statement: {text}")

    def _unsupported(self, what: str) -> QueryError:
        return QueryError.make(48, "NOT_IMPLEMENTED", f"The embedded engine has no {what} for row policies")


def _unquoted(token: Token) -> str:
    text = token.text.decode(errors="surrogateescape")
    if token.kind == "word":
        return text
    quote, inner = text[0], text[1:-1]
    return inner.replace(quote * 2, quote).replace("\\" + quote, quote).replace("\\\\", "\\")
