"""Columns of the user's choice: left out, renamed, masked, added. The readers see only the source's own names."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ch_sink.decode.avro.events import as_json
from ch_sink.decode.decoder import Decoder, digest
from ch_sink.decode.framing import Envelopes, Format
from ch_sink.decode.key_layouts import KeyForm
from ch_sink.decode.parts import unless_bad
from ch_sink.errors import StreamFailed
from ch_sink.model.change import BadRecord, ChangeBatch, Op, Records, UnknownColumn
from ch_sink.model.policy import ColumnPolicy, Policy, TopicProfile, mask_function
from ch_sink.ports import History, SchemaRegistry
from ch_sink.table.model import Family, TargetTable
from ch_sink.types.arrow import arrow_type
from ch_sink.types.chtype import text_type
from ch_sink.types.column import Column
from ch_sink.types.sql import literal

V = TypeVar("V")


def decoder_for(
    table: TargetTable,
    policy: Policy,
    *,
    want_before: bool = False,
    format: Format = "auto",  # noqa: A002
    registry: SchemaRegistry | None = None,
    key: tuple[str, ...] = (),
) -> "Decoder | ChosenColumns":
    """The decoder of a stream; ``key``: see Decoder. Raises ConfigError for an unknown format."""
    seen = _seen(table, policy)
    plain = Decoder(seen, policy, want_before=want_before, format=format, registry=registry, key=key)
    return plain if seen is table else ChosenColumns(plain, table, policy, registry)


def goes_on_with(profile: TopicProfile, table: TargetTable, policy: Policy) -> bool:
    """Whether the decoder of a stream reads on by this profile; else it learns anew what records show."""
    return profile.choices == digest(_seen(table, policy), policy)


def _seen(table: TargetTable, policy: Policy) -> TargetTable:
    """The table as the decoder sees it, itself where nothing is chosen."""
    return source_view(table, policy.columns) if policy.columns != ColumnPolicy() else table


class ChosenColumns:
    """Renames, masks and adds columns of what another decoder reads; profiles keep the source's names."""

    def __init__(
        self, plain: Decoder, table: TargetTable, policy: Policy, registry: SchemaRegistry | None = None
    ) -> None:
        """``plain``: a decoder of the table's `source_view`."""
        self._plain, self._table = plain, table
        self._chosen, self._evolve = policy.columns, policy.changes.evolve
        self._ignored = frozenset(policy.keys.ignored)
        self._target = dict(self._chosen.rename)
        self._masks = dict(self._chosen.mask)
        self._keys = Envelopes(registry)
        self._hidden = frozenset((*self._chosen.exclude, *self._masks))

    def learn(
        self, records: Records, profile: TopicProfile | None = None, history: History | None = None
    ) -> TopicProfile:
        """See Decoder.learn. Raises StreamFailed for choices that this topic does not allow, such as a masked key."""
        if self._chosen.exclude:
            self._refuse_key(self._key_of(records))
        learned = self._plain.learn(records, profile, history)
        self._refuse_key(learned.key_columns)
        if learned.documents and (self._hidden or self._target):
            raise StreamFailed(
                "columns.exclude, rename and mask apply to rows, and this topic holds documents",
                hint="choose document fields with document.columns, and set document.column to '' so that the "
                "whole document is not stored",
            )
        return learned

    def decode(self, records: Records, profile: TopicProfile | None = None, *, waited: bool = False) -> ChangeBatch:
        """See Decoder.decode; columns have the names and values of the table's."""
        profile = self.learn(records) if profile is None else profile
        batch = self._plain.decode(records, profile, waited=waited)
        there = pa.array(batch.op != Op.TRUNCATE)
        return replace(
            batch,
            key=self._key(batch.key, there) if batch.key is not None else None,
            after=self._image(batch.after, there),
            before=None if batch.before is None else self._image(batch.before, pa.array(batch.has_before)),
            unavailable=self._named(batch.unavailable),
            absent=self._named(batch.absent),
            absent_before=self._named(batch.absent_before),
            updates=self._named(batch.updates),
            clamped=type(batch.clamped)(self._named(batch.clamped)),
            unknown=chosen_unknown(batch.unknown, self._table, self._chosen, self._evolve),
            bad=[self._bad(found) for found in batch.bad],
        )

    def key_values(self, keys: list[bytes], profile: TopicProfile) -> list[tuple[Any, ...] | None]:
        """See Decoder.key_values."""
        return self._plain.key_values(keys, profile)

    def key_forms(self, keys: Sequence[bytes | None]) -> list[KeyForm]:
        """See Decoder.key_forms."""
        return self._plain.key_forms(keys)

    def _image(self, rows: pa.Table, there: pa.Array) -> pa.Table:
        """The rows with the table's columns, in its order. ``there``: which of them are rows."""
        found = {self._target.get(name, name): name for name in rows.column_names}
        added = dict(self._table.added)
        columns: dict[str, Any] = {}
        for column in self._table.source_columns:
            if column.name in added:
                columns[column.name] = _constant(added[column.name], there)
            elif column.name in found:
                columns[column.name] = self._masked(found[column.name], rows.column(found[column.name]), column.type)
        return pa.table(columns)

    def _masked(self, name: str, values: pa.ChunkedArray, kind: str) -> pa.Array | pa.ChunkedArray:
        how = self._masks.get(name)
        if how is None:
            return values
        whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        if isinstance(whole, pa.ChunkedArray):
            whole = pa.concat_arrays(whole.chunks) if whole.num_chunks else pa.nulls(0, values.type)
        return masked(whole, how, self._chosen.mask_key).cast(arrow_type(kind))

    def _key(self, key: pa.Table, there: pa.Array) -> pa.Table:
        added = dict(self._table.added)
        first = {name: _constant(added[name], there) for name in self._table.added_key(self._chosen) if name in added}
        rest = {self._target.get(name, name): key.column(name) for name in key.column_names}
        return pa.table({**first, **rest})

    def _named(self, by_column: Mapping[str, V]) -> dict[str, V]:
        return {self._target.get(name, name): value for name, value in by_column.items()}

    def _bad(self, found: BadRecord) -> BadRecord:
        """The record's fault under the table's names, and without a value that is not to be stored."""
        name = found.column
        if name is None:
            return found
        if name in self._hidden:
            found = replace(found, reason=f"column {name!r}: its value, which is masked, cannot be read")
        return replace(found, column=self._target.get(name, name))

    def _refuse_key(self, names: tuple[str, ...]) -> None:
        hidden = [name for name in names if name in self._hidden]
        if hidden:
            what = "excludes" if hidden[0] in self._chosen.exclude else "masks"
            raise StreamFailed(
                f"columns {what} {hidden[0]!r}, which is a column of the topic's key: without it rows cannot be apart",
                hint=f"remove {hidden[0]!r} from columns; a redundant key column can be named in ignored_key_fields",
            )

    def _key_of(self, records: Records) -> tuple[str, ...]:
        """The named fields of the chunk's first key."""
        key = next((key for key in records.keys if key is not None and key != b"null"), b"null")
        found: Any = unless_bad(None, lambda: msgspec.json.decode(as_json(*self._keys.exact(key))))
        return tuple(name for name in found if name not in self._ignored) if isinstance(found, dict) else ()


def _constant(value: pa.Scalar, there: pa.Array) -> pa.Array:
    """A column with this value in each row that is there, else null."""
    return pc.if_else(there, value, pa.scalar(None, value.type))


def masked(column: pa.Array, kind: str, key: str = "") -> pa.Array:
    """A column of text (Arrow binary) with each value masked. Every distinct value is hashed once."""
    coded = column.dictionary_encode() if not isinstance(column, pa.DictionaryArray) else column
    function = mask_function(kind, key)
    texts = pa.array(map(function, coded.dictionary.to_pylist()), pa.binary())
    return texts.take(coded.indices)


def chosen_unknown(
    found: Sequence[UnknownColumn], table: TargetTable, chosen: ColumnPolicy, evolve: str
) -> list[UnknownColumn]:
    """The columns under the table's names; masked ones as text, excluded ones not at all.

    Raises StreamFailed for one whose name another column is renamed to or an added one has, unless new columns are
    ignored.
    """
    masks = dict(chosen.mask)
    taken = {new for _, new in chosen.rename} | {name for name, _ in chosen.add}
    renamed = {old for old, _ in chosen.rename}
    out: list[UnknownColumn] = []
    for column in found:
        if column.name in chosen.exclude:
            continue
        if column.name in taken and column.name not in renamed:
            if evolve != "ignore":
                raise _taken(column.name, column.first_offset, table, dict(chosen.add))
            continue
        name = chosen.target(column.name)
        if column.name in masks:
            column = _masked(column, chosen)
        after = (
            None if column.after in chosen.exclude else chosen.target(column.after) if column.after else column.after
        )
        change = "reserved" if name in table.system_columns else column.change
        out.append(replace(column, name=name, after=after, change=change))
    return out


def _masked(column: UnknownColumn, chosen: ColumnPolicy) -> UnknownColumn:
    if column.clickhouse_type is None:
        return replace(column, comment="")
    kind = text_type(column.clickhouse_type)
    default = None if column.default_text is None else literal(chosen.masked(column.name, column.default_text))
    filled = column.filled and (default is not None or column.default is None)
    return replace(column, clickhouse_type=kind, comment="", default=default, filled=filled)


def _taken(name: str, offset: int, table: TargetTable, added: dict[str, str]) -> StreamFailed:
    by, hint = "columns.add fills", f"name {name!r} in columns.exclude, or give it another name in columns.rename"
    if name not in added:
        by = "columns.rename fills"
        hint = f"if the source has renamed that column itself, remove it from columns.rename; else {hint}"
    return StreamFailed(
        f"the change event at offset {offset} has a column {name!r}, and {by} the column {name!r} of "
        f"{table.qualified} with something else",
        hint=hint,
    )


def source_view(table: TargetTable, policy: ColumnPolicy) -> TargetTable:
    """The table under the source's names.

    A masked column is text, whatever its source type; an excluded one is there, so that the source's field is known,
    but is not read; an added one is not there.
    """
    source_of = {new: old for old, new in policy.rename}
    added = {name for name, _ in policy.add}
    masks = dict(policy.mask)
    named = {*source_of.values(), *policy.exclude}
    columns: list[Column] = []
    for column in table.columns:
        if column.name in added or (column.name in named and column.name not in source_of):
            continue
        name = source_of.get(column.name, column.name)
        found = replace(column, name=name)
        if name in masks:
            found = unmasked(found)
        columns.append(found)
    columns += [Column(name, "String", "ALIAS", "''") for name in policy.exclude]
    return replace(
        _without_own(table, frozenset(named)),
        columns=tuple(columns),
        sorting_key=tuple(source_of.get(name, name) for name in table.sorting_key if name not in added),
        place_columns=frozenset(source_of.get(name, name) for name in table.place_columns - added),
        left_out=frozenset(),
        added=(),
        defaults=(),
    )


def unmasked(column: Column) -> Column:
    """A masked column before it is masked: text, whatever was noted of the masks."""
    return replace(column, type=text_type(column.type), comment="", note="")


def _without_own(table: TargetTable, named: frozenset[str]) -> TargetTable:
    """The table without those of the sink's own columns whose names the source has for columns of its own."""
    if not table.system_columns & named:
        return table
    engine = table.engine

    def own(name: str | None) -> str | None:
        return None if name in named else name

    plain = replace(
        engine,
        family=Family.REPLACING,
        version_column=own(engine.version_column),
        sign_column=own(engine.sign_column),
        is_deleted_column=own(engine.is_deleted_column),
    )
    return replace(table, engine=plain)
