"""Key expressions as trees: columns, literals and function calls, with ``%`` and ``/`` as the functions they are."""

from dataclasses import dataclass

from ch_sink.errors import TableError
from ch_sink.types.sql import Kind, Token, tokenize


@dataclass(frozen=True, slots=True)
class ColumnRef:
    """A column, by name."""

    name: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A whole number or a string."""

    value: int | str


@dataclass(frozen=True, slots=True)
class Call:
    """A function of expressions. Operators are called ``modulo``, ``divide``, ``multiply``, ``plus``, ``minus``."""

    name: str
    arguments: "tuple[Expression, ...]"


Expression = ColumnRef | Literal | Call

_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2, "%": 2}
_OPERATORS = {"+": "plus", "-": "minus", "*": "multiply", "/": "divide", "%": "modulo"}


def parse_expression(text: str) -> Expression:
    """The tree of a key expression; a parenthesised list is a call of ``tuple``.

    Raises TableError for what it does not know (lambdas, intervals, comparisons, subscripts).
    """
    parser = _Parser(text, tokenize(text))
    tree = parser.binary(0)
    if parser.place != len(parser.tokens):
        raise TableError(f"cannot read the key expression {text!r}")
    return tree


class _Parser:
    def __init__(self, text: str, tokens: list[Token]) -> None:
        self.text = text
        self.tokens = tokens
        self.place = 0

    def peek(self) -> Token | None:
        return self.tokens[self.place] if self.place < len(self.tokens) else None

    def take(self, symbol: str) -> bool:
        token = self.peek()
        if token is not None and token.is_symbol(symbol):
            self.place += 1
            return True
        return False

    def fail(self) -> TableError:
        return TableError(f"cannot read the key expression {self.text!r}")

    def binary(self, least: int) -> Expression:
        left = self.unary()
        while (token := self.peek()) is not None and token.kind is Kind.SYMBOL:
            rank = _PRECEDENCE.get(token.value, 0)
            if rank <= least:
                break
            self.place += 1
            left = Call(_OPERATORS[token.value], (left, self.binary(rank)))
        return left

    def unary(self) -> Expression:
        if self.take("-"):
            inner = self.unary()
            return (
                Literal(-inner.value)
                if isinstance(inner, Literal) and isinstance(inner.value, int)
                else Call("negate", (inner,))
            )
        token = self.peek()
        if token is None:
            raise self.fail()
        self.place += 1
        if token.is_symbol("("):
            items = self.items()
            return items[0] if len(items) == 1 else Call("tuple", items)
        if token.kind is Kind.STRING:
            return Literal(token.value)
        if token.kind is Kind.NUMBER:
            if not token.value.isdigit():
                raise self.fail()
            return Literal(int(token.value))
        if token.kind is Kind.NAME and self.take("("):
            return Call(token.value, self.items())
        if token.kind not in (Kind.NAME, Kind.QUOTED):
            raise self.fail()
        name = token.value
        while self.take("."):
            part = self.peek()
            if part is None or part.kind not in (Kind.NAME, Kind.QUOTED):
                raise self.fail()
            self.place += 1
            name += "." + part.value
        return ColumnRef(name)

    def items(self) -> tuple[Expression, ...]:
        if self.take(")"):
            return ()
        found = [self.binary(0)]
        while self.take(","):
            found.append(self.binary(0))
        if not self.take(")"):
            raise self.fail()
        return tuple(found)
