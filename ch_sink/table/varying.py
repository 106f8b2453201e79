"""Columns to which the server gives another value each time: by the clock or by chance.

A dictionary may change as well; most of those that fill columns do not.
"""

import re
from collections.abc import Iterable
from itertools import pairwise

from ch_sink.types.column import Column
from ch_sink.types.sql import Kind, tokenize

__all__ = ["varying_columns"]

_VARIES = re.compile(
    r"now(64|InBlock|InBlock64)?|today|yesterday|cur(rent_)?date|current_timestamp|local(time|timestamp)|"
    r"utc_?timestamp|(rand|generate)\w*",
    re.IGNORECASE,
)


def varying_columns(columns: Iterable[Column]) -> frozenset[str]:
    """Those whose DEFAULT or MATERIALIZED expression itself calls such a function."""
    return frozenset(c.name for c in columns if c.default_expression and _varies(c.default_expression))


def _varies(expression: str) -> bool:
    return any(
        name.kind is Kind.NAME and after.is_symbol("(") and _VARIES.fullmatch(name.value)
        for name, after in pairwise(tokenize(expression))
    )
