"""The source's row type with the columns that the user chose: the row type of the table."""

from dataclasses import replace

from ch_sink.errors import TableError
from ch_sink.model.policy import ColumnPolicy
from ch_sink.types.build import without_expression
from ch_sink.types.column import WIDE
from ch_sink.types.connect import Field, RowSchema, SourceType
from ch_sink.types.sql import Kind, tokenize

__all__ = ["added_type", "chosen_schema"]


def chosen_schema(schema: RowSchema, chosen: ColumnPolicy, key_columns: tuple[str, ...] = ()) -> RowSchema:
    """The row type of the table. ``key_columns``: the configured key, which names a key of a single value.

    Raises TableError if a column of the key is excluded or masked, or if two columns would have one name.
    """
    if chosen == ColumnPolicy():
        return schema
    masks = dict(chosen.mask)
    key = schema.key
    if len(key) == 1 and not key[0].name and len(key_columns) == 1:
        key = (Field(key_columns[0], key[0].type),)
    hidden = [f.name for f in key if f.name in masks or f.name in chosen.exclude]
    if hidden:
        raise TableError(
            f"columns {'masks' if hidden[0] in masks else 'excludes'} {hidden[0]!r}, which is a column of the topic's "
            "key: without it rows cannot be told apart",
            hint=f"Take {hidden[0]!r} out of columns.",
        )
    own = [f.name for f in schema.fields]
    fields = [
        _masked(chosen.target(f.name), f.type)
        if f.name in masks
        else Field(chosen.target(f.name), without_expression(f.type, own))
        for f in schema.fields
        if f.name not in chosen.exclude
    ]
    added = {name: Field(name, added_type(text)) for name, text in chosen.add}
    names = [f.name for f in fields]
    twice = next((name for name in names if name in added or names.count(name) > 1), None)
    if twice is not None:
        raise TableError(
            f"the source has a column {twice!r}, and columns fills {twice!r} with something else",
            hint=f"Name {twice!r} in columns.exclude, or give it another name in columns.rename.",
        )
    own_key = tuple(Field(chosen.target(f.name) if f.name else "", f.type) for f in key)
    first = tuple(added[name] for name in chosen.source if name in added) if own_key else ()
    return RowSchema((*fields, *added.values()), (*first, *own_key), schema.inferred)


def added_type(text: str) -> SourceType:
    """The type of a constant that is written as SQL; text for anything but a plain number or a truth value."""
    try:
        tokens = tokenize(text.strip().removeprefix("-"))
    except TableError:
        tokens = []
    if len(tokens) == 1 and tokens[0].kind is Kind.NUMBER:
        whole = not set(tokens[0].value) & set(".eExX")
        return SourceType("int64" if whole else "float64", optional=False)
    if len(tokens) == 1 and tokens[0].is_word("TRUE", "FALSE"):
        return SourceType("boolean", optional=False)
    return SourceType("string", optional=False)


def _masked(name: str, source: SourceType) -> Field:
    # A column of masks is not made wide, whatever the values are.
    own = replace(source, parameters=tuple(p for p in source.parameters if p != WIDE))
    return Field(name, SourceType("string", optional=source.optional), own)
