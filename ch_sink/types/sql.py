"""ClickHouse SQL texts: quoted identifiers and string literals."""

__all__ = ["OWN", "literal", "quote"]

OWN = "__ch_sink_"
"""How names of the sink's own queries begin. A shorter one may be that of a column: names of a SELECT hide columns, and
a tuple or JSON column hides a table of its name."""


def quote(name: str) -> str:
    """A ClickHouse identifier in backquotes."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def literal(text: str) -> str:
    """A ClickHouse string literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\t", "\\t")
    return f"'{escaped}'"
