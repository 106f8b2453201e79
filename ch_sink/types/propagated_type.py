"""What ``column.propagate.source.type`` adds to the schema: the source column's own type, length and scale."""

from dataclasses import dataclass

from ch_sink.types.connect import SourceType

__all__ = ["PropagatedType", "propagated_type"]

_MARK = "__debezium.source.column."
_DECIMALS = frozenset(("DECIMAL", "DEC", "NUMERIC", "FIXED", "NUMBER", "MONEY", "SMALLMONEY"))
_BINARY = frozenset(("BINARY", "VARBINARY", "BYTEA", "IMAGE", "ROWVERSION", "RAW"))
_INTEGERS = {"TINYINT": 8, "SMALLINT": 16, "MEDIUMINT": 32, "INT": 32, "INTEGER": 32, "BIGINT": 64}


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
        return self.word in ("UUID", "UNIQUEIDENTIFIER")


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
