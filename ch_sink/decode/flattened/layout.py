"""How flattened rows of one shape are decoded: their columns, and what the added fields say."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec

from ch_sink.decode.flattened.added_fields import Added, block_types, flattened
from ch_sink.decode.framing import Framed
from ch_sink.decode.json.aliases import row_decoder
from ch_sink.decode.json.layout import Layout
from ch_sink.decode.json.row_decoder import RowFields
from ch_sink.decode.json.rows import read_row
from ch_sink.model.policy import Policy
from ch_sink.sources import Flattened
from ch_sink.table.model import TargetTable

__all__ = ["FlatLayout", "FlatLayouts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatLayout(Layout):
    """A layout of rows, with what they say beside their columns."""

    roles: dict[str, str]
    """Role → attribute of the row."""
    aliased: bool
    """Columns of the table hold some of it."""
    types: dict[str, Any]
    block: type[msgspec.Struct]
    flattened: Flattened


class FlatLayouts:
    """Makes the layouts of flattened rows."""

    def __init__(self, table: TargetTable, policy: Policy, added: Added, *, before: bool) -> None:
        self._table, self._policy, self._added, self._before = table, policy, added, before
        self._columns = frozenset(c.name for c in table.source_columns)

    def build(self, framed: Framed, connector: str, fields: RowFields | None, numbers: bool) -> FlatLayout:
        """The layout of rows of this connector (see `RowDecoder`). The payload is ``{"after": row}``."""
        source = flattened(connector)
        expected: frozenset[str] | None = None
        extras: list[str] = []
        declared = {f.name: f.type for f in framed.schema.fields} if framed.schema is not None else None
        if declared is not None:
            names = list(declared)
            declared = {n: t for n, t in declared.items() if n in self._columns or not self._added.is_added(n)}
        else:
            assert fields is not None
            names = [*fields.extras, *sorted(fields.expected)]
            expected = fields.expected if fields.strict else None
            extras = [n for n in fields.extras if not self._added.is_added(n)]
        roles = self._added.roles(names)
        row = read_row(self._table, self._policy.values, source, declared, expected, extras, numbers=numbers)
        types = block_types(source)
        attributes = {field: attribute for attribute, field in row.renamed.items()}
        at: dict[str, str] = {}
        more: list[tuple[str, Any, Any, str]] = []
        for role, name in roles.items():
            at[role] = attributes.get(name, role)
            if role == "deleted" and name not in attributes:
                more.append((role, str | bool | None | msgspec.UnsetType, msgspec.UNSET, name))
            elif name not in attributes:
                more.append((role, types.get(role, str | bool | None), None, name))
        # A block has every field, also those that were not added: their names cannot occur.
        more += [(role, wire, None, f"\x7f{role}") for role, wire in types.items() if at.get(role) != role]
        plain = {name for _, _, _, name in more}
        others = [n for n in names if self._added.is_added(n) and n not in attributes and n not in plain]
        more += [(f"o{i}", msgspec.Raw, msgspec.UNSET, name) for i, name in enumerate(others)]
        after = row.struct("FlatRow", row.present, required=not row.tolerant, forbid=True, more=more)
        wrapped = msgspec.defstruct("Wrapped", [("after", after)], gc=False)
        null = after(**dict.fromkeys(m[0] for m in row.present))
        block = msgspec.defstruct("Block", [(role, wire, None) for role, wire in types.items()], gc=False)
        return FlatLayout(
            connector=connector,
            source=source,
            decode=row_decoder(msgspec.json.Decoder(wrapped, float_hook=Decimal).decode, (after,)),
            columns=row.columns,
            before_columns=row.columns,
            null_row=null,
            null_before=null,
            before=self._before,
            tolerant=row.tolerant,
            missing=row.missing,
            unknown=row.unknown,
            extras=row.extras,
            reserved=row.reserved,
            roles=at,
            aliased=any(at[role] != role for role in at if role in types),
            types=types,
            block=block,
            flattened=source,
        )
