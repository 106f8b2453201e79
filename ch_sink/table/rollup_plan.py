"""The rollups that a table can have, and the types of their expressions, which the server states."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from ch_sink.errors import TableError
from ch_sink.model.policy import ColumnPolicy
from ch_sink.table.engine_full import removing_ttl
from ch_sink.table.model import TargetTable
from ch_sink.table.rollup import Rollup, RollupChoice
from ch_sink.types.chtype import parse_type
from ch_sink.types.sql import OWN, Kind, Token, columns_in, literal, quote, tokenize

_VARYING = re.compile(
    r"now\w*|today|yesterday|curdate|local(time|timestamp)|utc_?timestamp|current\w+|session_user|auth\w*user|user|"
    r"rand\w*|generate\w+|fuzz\w+|obfuscateQuery|array(Partial\w+|Shuffle|RandomSample|Join)|unnest|"
    r"dict(Get|Has|IsIn)\w*|joinGet\w*|region\w+|file\w*|catboostEvaluate|naiveBayes\w+|assignCentroid|ai\w+|"
    r"running\w+|neighbor|(row|block)Number\w*|block(Serialized)?Size|lowCardinality(Indices|Keys)|isConstant|"
    r"host_?name|fqdn|fullHostName|database|schema|default(Profiles|Roles)|enabled\w+|pg_?\w+|display_?name|"
    r"(initial_?)?query_?(id|start_?time)|connection_?id|tid|transaction\w+|shard\w+|version|revision|buildId|chdb|"
    r"uptime|zookeeper\w+|server\w+|time_?zone|tcpPort|showCertificate|globalVariable|hasColumnInTable|"
    r"get(ClientHTTPHeader|Macro|MergeTreeSetting|OSKernelVersion|Server\w+|Setting\w*|MaxTable\w+)|hasThreadFuzzer|"
    r"toColumnTypeName|dumpColumnStructure|addressTo\w+|timeSeries\w+|dateTimeToUUIDv7|financialNetPresentValueExtended|"
    r"parse\w*BestEffort\w*|__\w+",
    re.IGNORECASE,
)
"""Functions whose value depends on more than their arguments, as 26.9 says, and some that it takes for others.

Earlier servers do not say it in `system.functions`, and their query cache believes in `connectionId` and others."""
_IN = re.compile("(global)?(not)?(null)?in(ignoreset)?", re.IGNORECASE)
_NOTE = re.compile(r"( ?\((alias .*|children \d+)\))+$")
"""The notes that follow the name of a node."""
_KEYLESS = re.compile(r"\b(JSON|Object|Dynamic|Variant|(Simple)?AggregateFunction)\b")
"""Types that the server takes into no sorting key."""
_FLOAT = re.compile(r"\b(Float32|Float64|BFloat16)\b")


def expect_rollups(table: TargetTable, choices: Sequence[RollupChoice], chosen: ColumnPolicy) -> None:
    """Raises TableError for a table whose rollups could not be kept right, or for an expression of more than a row."""
    if not choices:
        return
    engine = table.engine
    if not engine.family.collapses:
        raise TableError(
            f"rollups need a table that stores differences, and {table.qualified} is a {engine.name}",
            hint="Set engine: collapsing or versioned-collapsing, and let `ch_sink init` make a new table. For one "
            "that is there, run `ch_sink resync CONFIG --apply` with that engine and without rollups first.",
        )
    if table.distributed or engine.replicated or engine.shared:
        raise TableError(
            f"rollups of {table.qualified} ({engine.name}): the rollup and the table could be ahead of each other on "
            "different servers",
            hint="Rollups need a table of one server: leave out clickhouse.cluster and init.replication.",
        )
    if removing_ttl(table.ttl):
        raise TableError(
            f"rollups of {table.qualified}: its TTL removes rows, which a rollup would keep", hint="Leave out the TTL."
        )
    for choice in choices:
        for key, text in choice.expressions:
            _expect_of_the_row(f"rollups.{choice.name}.{key}", text, table, chosen)


def expect_lasting(choices: Sequence[RollupChoice], created: str) -> None:
    """Raises TableError for a column whose own TTL replaces values that a rollup has added.

    ``created``: the statement that creates the table, as the server shows it.
    """
    fading, depth, column = set[str](), 0, ""
    for before, token in pairwise(tokenize(created)):
        depth += token.is_symbol("(") - token.is_symbol(")")
        if depth == 0 and token.is_symbol(")"):
            break  # the end of the columns
        if depth == 1 and token.kind is Kind.QUOTED and (before.is_symbol("(") or before.is_symbol(",")):
            column = token.value
        elif depth == 1 and token.is_word("TTL"):
            fading.add(column)
    for choice in choices:
        for key, text in choice.expressions:
            if used := sorted(columns_in(text, fading)):
                raise TableError(
                    f"rollups.{choice.name}.{key} names column {used[0]!r}, whose TTL replaces values that were added",
                    hint="Leave out the column, or take away its TTL.",
                )


def _expect_of_the_row(where: str, text: str, table: TargetTable, chosen: ColumnPolicy) -> None:
    """Raises TableError for an expression whose value the stored row alone does not decide for ever."""
    tokens = tokenize(text)
    if any(token.is_word("SELECT") for token in tokens) or _names_a_set(tokens):
        raise TableError(
            f"{where}: {text} reads another table: what a row has added could not be subtracted again",
            hint="Name columns of the table and functions of them only.",
        )
    if out := sorted(columns_in(text, chosen.exclude)):
        raise TableError(
            f"{where} names column {out[0]!r}, which columns.exclude leaves out",
            hint="Remove it from columns.exclude or from the rollup.",
        )
    masked = {chosen.target(name) for name, _ in chosen.mask}
    if (hidden := sorted(columns_in(text, masked))) and not where.rpartition(".")[0].endswith(".by"):
        raise TableError(
            f"{where} names column {hidden[0]!r}, of which the table stores a mask (columns.mask)",
            hint="A masked column can be grouped by, not summed or compared.",
        )
    constant = {name for name, _ in table.defaults}
    for name in sorted(columns_in(text, {c.name for c in table.source_columns})):
        column = table.column(name)
        if column is not None and column.default_expression and name not in constant:
            raise TableError(
                f"{where} names column {name!r}, which the server computes where an event states none "
                f"(DEFAULT {column.default_expression})",
                hint="Name the columns that it is computed from.",
            )


def _names_a_set(tokens: Sequence[Token]) -> bool:
    """Whether an IN, as operator or function, has anything but values in parentheses: a bare name is another table."""
    for place, token in enumerate(tokens):
        if token.kind is not Kind.NAME or _IN.fullmatch(token.value) is None:
            continue
        if place + 1 == len(tokens) or not tokens[place + 1].is_symbol("("):
            return True
        depth = 0
        for at in range(place + 1, len(tokens)):
            depth += tokens[at].is_symbol("(") - tokens[at].is_symbol(")")
            named = tokens[at].kind not in (Kind.STRING, Kind.NUMBER, Kind.SYMBOL) and not tokens[at].is_word("NULL")
            if named and not (at + 1 < len(tokens) and tokens[at + 1].is_symbol("(")):
                return True
            if depth == 0:
                break
    return False


def probe(table: TargetTable, choice: RollupChoice) -> str:
    """The query whose columns have the types of the rollup's expressions: those of ``by``, then those that are summed.

    The server's error for it is its word on the expressions.
    """
    structure = ", ".join(f"{quote(c.name)} {c.type}" for c in table.source_columns)
    texts = [text for _, text in (*choice.by, *choice.values)]
    shown = ", ".join(f"({text}) AS {OWN}c{place}" for place, text in enumerate(texts))
    where = f" WHERE ({choice.where})" if choice.where else ""
    return f"DESCRIBE TABLE (SELECT {shown} FROM null({literal(structure)}){where})"


def syntax_probe(choices: Sequence[RollupChoice]) -> str:
    """The query of the trees of all expressions, as `expect_row_functions` reads them: a line for each node."""
    texts = ", ".join(f"({text})" for choice in choices for _, text in choice.expressions)
    return f"SELECT explain FROM (EXPLAIN AST SELECT {texts})"


def expect_row_functions(
    table: TargetTable, choices: Sequence[RollupChoice], trees: Sequence[str], functions: Mapping[str, bool]
) -> None:
    """Raises TableError for an expression that calls a function of more than its arguments, or an aggregate function.

    Args:
        trees: the answer to `syntax_probe`, of expressions that the server accepts.
        functions: whether a function that the server knows depends on its arguments alone, by name.
    """
    columns = [c.name for c in table.source_columns]
    stated = [(f"rollups.{choice.name}.{key}", text) for choice in choices for key, text in choice.expressions]
    for (where, text), nodes in zip(stated, _nodes(trees), strict=True):
        for kind, name in nodes:
            if "Asterisk" in kind or "Matcher" in kind:
                raise TableError(
                    f"{where}: {text} does not name the columns that it reads", hint="Name each column of the table."
                )
            called = kind == "Function" and name != "lambda"
            # A bare name that is no column is a function without arguments (from 26.3 on), or a lambda's argument.
            bare = kind == "Identifier" and name in functions and not columns_in(quote(name), columns)
            if (called or bare) and (not functions.get(name, False) or _VARYING.fullmatch(name)):
                raise TableError(
                    f"{where}: {text} calls {name}, which is not known to depend on the row alone: what a row has "
                    "added could not be subtracted again",
                    hint="Name columns of the table and built-in functions of them only: no aggregate function, none "
                    "of CREATE FUNCTION, of the clock, the server or another table.",
                )


def names_in(trees: Sequence[str]) -> list[str]:
    """The names in the answer to `syntax_probe`: functions, columns and arguments of lambdas."""
    return sorted({name for nodes in _nodes(trees) for kind, name in nodes if kind in ("Function", "Identifier")})


def _nodes(trees: Sequence[str]) -> list[list[tuple[str, str]]]:
    """Kind and name of every node, by expression: the expressions are the children of the SELECT's first list."""
    found: list[list[tuple[str, str]]] = []
    top = -1
    for line in trees:  # SelectQuery, below it ExpressionList, below that the expressions
        level = len(line) - len(line.lstrip())
        kind, _, rest = line.strip().partition(" ")
        if top < 0:
            top = level + 2 if kind == "SelectQuery" else -1
        elif level == top - 1 and not found:
            continue
        elif level < top:
            break
        else:
            found += [[]] if level == top else []
            found[-1].append((kind, _NOTE.sub("", rest)))
    return found


def rollup_of(table: TargetTable, choice: RollupChoice, types: Sequence[str], server: str = "") -> Rollup:
    """The rollup, from the types that the server gives its expressions. Raises TableError for a value that has no sum.

    Args:
        types: as `probe` asks for them.
        server: what the server and its settings are.
    """
    keys = tuple(types[: len(choice.by)])
    for (name, text), kind in zip(choice.by, keys, strict=True):
        if _FLOAT.search(kind):
            raise TableError(
                f"rollups.{choice.name}.by.{name}: {text} is a {kind}, and a table merges 0.0 with -0.0, which "
                "GROUP BY keeps apart",
                hint=f"Group by a Decimal, such as toDecimal64({text}, 4), or by a text.",
            )
        if _KEYLESS.search(kind):
            raise TableError(
                f"rollups.{choice.name}.by.{name}: {text} is a {kind}, which no sorting key can have",
                hint=f"Group by a value of another type, such as toString({text}).",
            )
    keyed = [f"sum.{name}" for name, _ in choice.sums] + [f"avg.{name}" for name, _ in choice.avgs]
    sums = []
    for key, (_, text), kind in zip(keyed, choice.values, types[len(keys) :], strict=True):
        sums.append((_widest(f"rollups.{choice.name}.{key}", text, kind, choice), parse_type(kind).nullable))
    stored = {c.name: c.type for c in table.source_columns}
    used = sorted(frozenset().union(*(columns_in(text, stored) for _, text in choice.expressions)))
    return Rollup(
        choice,
        table.database,
        table.qualified,
        table.engine.sign_column or "_sign",
        keys,
        tuple(sums),
        tuple(used),
        max(table.dedup_window, 1000),
        (*(stored[name] for name in used), server),
    )


def _widest(where: str, text: str, kind: str, choice: RollupChoice) -> str:
    bare = parse_type(kind).bare
    if bare.name in ("Bool", "Nothing") or (bare.name.startswith(("Int", "UInt")) and bare.name[-1].isdigit()):
        return "Int256"
    if bare.name == "Decimal":
        return f"Decimal(76, {bare.scale})"
    if bare.name in ("Float32", "Float64", "BFloat16"):
        if choice.allow_float:
            return "Float64"
        raise TableError(
            f"{where}: {text} is a {kind}, and sums of floating-point numbers are not exact: what a row has added is "
            "not exactly what it subtracts",
            hint=f"Sum a Decimal, such as toDecimal64({text}, 4), or set allow_float: true.",
        )
    raise TableError(
        f"{where}: {text} is a {kind}, which has no sum", hint="Name an expression of an integer or Decimal type."
    )
