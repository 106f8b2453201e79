"""What the user decided about values."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["PLACEHOLDER", "ValuePolicy"]

PLACEHOLDER = "__debezium_unavailable_value"


@dataclass(frozen=True, slots=True)
class ValuePolicy:
    """How values are read and converted. Field names equal the keys of the YAML file."""

    out_of_range: Literal["fail", "clamp", "null"] = "fail"
    """What happens to a value that its column cannot hold. ``fail`` makes the record a dead letter."""
    decimal_handling: Literal["precise", "double", "string"] = "precise"
    """The connector's ``decimal.handling.mode``, for events that do not declare their types."""
    binary_handling: Literal["bytes", "base64", "base64-url-safe", "hex"] = "bytes"
    """The connector's ``binary.handling.mode``, likewise."""
    time_precision: Literal[
        "adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"
    ] = "adaptive"
    """The connector's ``time.precision.mode``, likewise."""
    placeholder: str = PLACEHOLDER
    """The connector's ``unavailable.value.placeholder``."""
