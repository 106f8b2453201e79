"""A decoder whose change events have the columns that the user chose."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ch_sink.decode.avro.events import as_json
from ch_sink.decode.chosen.masks import masked
from ch_sink.decode.chosen.new_columns import chosen_unknown
from ch_sink.decode.chosen.source_view import source_view
from ch_sink.decode.decoder import Decoder
from ch_sink.decode.framing import Envelopes, Format
from ch_sink.decode.isolate import of_record
from ch_sink.errors import StreamFailed
from ch_sink.model.change import BadRecord, ChangeBatch, Op, Records
from ch_sink.model.policy import ColumnPolicy, Policy
from ch_sink.model.profile import TopicProfile
from ch_sink.ports import History, SchemaRegistry
from ch_sink.table.model import TargetTable
from ch_sink.types.arrow import arrow_type

__all__ = ["ChosenColumns", "decoder_for"]

V = TypeVar("V")


def decoder_for(
    table: TargetTable,
    policy: Policy,
    *,
    want_before: bool = False,
    format: Format = "auto",  # noqa: A002
    registry: SchemaRegistry | None = None,
) -> "Decoder | ChosenColumns":
    """The decoder of a stream. Raises ConfigError for an unknown format."""
    chosen = policy.columns != ColumnPolicy()
    seen = source_view(table, policy.columns) if chosen else table
    plain = Decoder(seen, policy, want_before=want_before, format=format, registry=registry)
    return ChosenColumns(plain, table, policy, registry) if chosen else plain


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
                "columns.exclude, rename and mask are for rows, and this topic holds documents",
                hint="choose the fields of documents with document.columns, and set document.column to '' so that the "
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
                f"columns {what} {hidden[0]!r}, which is a column of the topic's key: without it rows cannot be told "
                "apart",
                hint=f"take {hidden[0]!r} out of columns; a key column that others make superfluous can be named in "
                "ignored_key_fields",
            )

    def _key_of(self, records: Records) -> tuple[str, ...]:
        """The fields of the chunk's first key, as far as they are named."""
        for key in records.keys:
            if key is not None and key != b"null":
                try:
                    found: Any = msgspec.json.decode(as_json(*self._keys.exact(key)))
                except Exception as error:
                    if not of_record(error):
                        raise
                    return ()
                return tuple(name for name in found if name not in self._ignored) if isinstance(found, dict) else ()
        return ()


def _constant(value: pa.Scalar, there: pa.Array) -> pa.Array:
    """A column with this value in each row that is there, else null."""
    return pc.if_else(there, value, pa.scalar(None, value.type))
