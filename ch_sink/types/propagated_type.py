"""What ``column.propagate.source.type`` adds to the schema: the source column's own type, length and scale.

A type's name means something in the system that it comes from only. PostgreSQL's connector propagates the name of a
domain, SQL Server's that of an alias type and Db2's that of a distinct type: users choose these names, and one that
another system gives a meaning to (a domain ``year`` over ``integer``) has none here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ch_sink.types.connect import Field, SourceType

__all__ = ["PropagatedType", "of_system", "propagated_type"]

_MARK = "__debezium.source.column."
_DECIMALS = frozenset(("DECIMAL", "DEC", "NUMERIC", "FIXED", "NUMBER", "MONEY", "SMALLMONEY"))
_BINARY = frozenset(("BINARY", "VARBINARY", "BYTEA", "IMAGE", "ROWVERSION", "RAW"))
_INTEGERS = {"TINYINT": 8, "SMALLINT": 16, "MEDIUMINT": 32, "INT": 32, "INTEGER": 32, "BIGINT": 64}
_UUIDS = frozenset(("UUID", "UNIQUEIDENTIFIER"))
_OWN = {
    "postgresql": frozenset(("NUMERIC", "BYTEA", "VARBIT")),
    "sqlserver": frozenset(
        "TINYINT SMALLINT INT BIGINT DECIMAL NUMERIC MONEY SMALLMONEY BINARY VARBINARY IMAGE ROWVERSION TIMESTAMP "
        "UNIQUEIDENTIFIER DATETIMEOFFSET DATETIME2".split()
    ),
    "db2": frozenset("SMALLINT INTEGER BIGINT DECIMAL NUMERIC BINARY VARBINARY BLOB".split()),
}
"""Of the systems in which users name types: the words that have a meaning here, and that the system itself gives."""
_OTHERS = frozenset(("YEAR", "SERIAL", "VARBIT", "ROWVERSION", "TIMESTAMP", "DATETIMEOFFSET", "DATETIME2"))


@dataclass(frozen=True, slots=True)
class PropagatedType:
    """The declaration of the source column, as far as it was sent. ``word`` is empty if none was."""

    word: str = ""
    """The type's first word in capitals: ``DECIMAL``, ``BIGINT``, ``UNIQUEIDENTIFIER``."""
    is_unsigned: bool = False
    length: int | None = None
    scale: int | None = None

    @property
    def unsigned(self) -> str | None:
        """The ClickHouse type of an unsigned integer; None for other types."""
        bits = _INTEGERS.get(self.word) if self.is_unsigned else 64 if self.word == "SERIAL" else None
        return f"UInt{bits}" if bits else None

    @property
    def is_signed(self) -> bool:
        return self.word in _INTEGERS and not self.is_unsigned

    @property
    def decimal(self) -> tuple[int, int] | None:
        """Precision and scale of a decimal that ClickHouse holds; None for anything else."""
        if self.word == "NUMBER" and self.scale is None:
            return None  # Oracle's NUMBER without either is propagated_type as one of 38 digits, and holds any scale
        precision, scale = self.length or 0, self.scale or 0
        return (precision, scale) if self.word in _DECIMALS and 0 <= scale <= precision <= 76 and precision else None

    @property
    def is_rowversion(self) -> bool:
        return self.word in ("ROWVERSION", "TIMESTAMP")

    @property
    def is_binary(self) -> bool:
        return self.word in _BINARY or self.word.endswith("BLOB")

    @property
    def is_uuid(self) -> bool:
        return self.word in _UUIDS

    def is_of(self, system: str) -> bool:
        """Whether the word is a type of this system, or has no meaning here in any system.

        ``system``: a connector's name; empty if it is not known. Then a plain integer is not a YEAR: the connector of
        MySQL, which has that type, says so by the semantic type as well.
        """
        if system in _OWN:
            return not self._has_meaning or (self.word in _OWN[system] and not self.is_unsigned)
        return bool(system) or self.word != "YEAR"

    @property
    def _has_meaning(self) -> bool:
        known = self.word in _OTHERS or self.word in _DECIMALS or self.word in _INTEGERS
        return known or self.is_binary or self.is_uuid


def of_system(fields: Mapping[str, SourceType], connector: str) -> dict[str, SourceType]:
    """The types of a row's fields without the propagated names that are none of the source system's.

    ``connector`` is that of the events: ``postgresql``, ``flattened:postgresql``; empty or ``flattened`` if it is not
    known.
    """
    form, _, inner = connector.partition(":")
    system = inner if form == "flattened" else form
    return {name: _of_system(source, system) for name, source in fields.items()}


def _of_system(source: SourceType, system: str) -> SourceType:
    items = _of_system(source.items, system) if source.items is not None else None
    fields = tuple(Field(f.name, _of_system(f.type, system), f.unmasked) for f in source.fields)
    kept = source.parameters
    if not propagated_type(source).is_of(system):
        kept = tuple((name, value) for name, value in kept if name != _MARK + "type")
    return replace(source, parameters=kept, items=items, fields=fields)


def propagated_type(source: SourceType) -> PropagatedType:
    """The propagated declaration of a column."""
    declared = (source.parameter(_MARK + "type") or "").strip().upper()
    if not declared:
        return PropagatedType()
    return PropagatedType(
        declared.split()[0].split("(")[0],
        "UNSIGNED" in declared,
        _number(source.parameter(_MARK + "length")),
        _number(source.parameter(_MARK + "scale")),
    )


def _number(text: str | None) -> int | None:
    digits = "" if text is None else text.removeprefix("-")
    return int(text or "") if digits.isascii() and digits.isdigit() and len(digits) < 20 else None
