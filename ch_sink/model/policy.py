"""What the user decided: the choices that change what the pure core does with an event."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["PLACEHOLDER", "Policy"]

PLACEHOLDER = "__debezium_unavailable_value"


@dataclass(frozen=True, slots=True)
class Policy:
    """Choices of one stream. Field names equal the keys of the YAML file."""

    deletes: Literal["fail", "ignore"] = "fail"
    """What a delete does on ``ReplacingMergeTree(ver)`` that has no sign or is_deleted column."""
    truncate: Literal["apply", "ignore", "fail"] = "fail"
    on_unresolved: Literal["dead_letter", "null"] = "dead_letter"
    on_bad_record: Literal["dead_letter", "fail"] = "dead_letter"
    out_of_range: Literal["fail", "clamp", "null"] = "fail"
    """``fail`` makes the record a dead letter."""
    decimal_handling: Literal["precise", "double", "string"] = "precise"
    """The connector's ``decimal.handling.mode``, for events that do not declare their types."""
    binary_handling: Literal["bytes", "base64", "base64-url-safe", "hex"] = "bytes"
    """``binary.handling.mode`` likewise."""
    time_precision: Literal[
        "adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"
    ] = "adaptive"
    """``time.precision.mode`` likewise."""
    evolve: Literal["add_columns", "ignore", "fail"] = "fail"
    version_strategy: Literal["auto", "source_position", "kafka_offset", "source_time", "insertion_order"] = "auto"
    version_floor: int = 0
    placeholder: str = PLACEHOLDER
    redelivery_scan: int = 10_000
    """How many records before a backward step are searched for the very same record."""
    sign_column: str | None = None
    """Sign column of a ``ReplacingMergeTree(ver)``, where it is not called ``sign`` or ``_sign``."""
    key_columns: tuple[str, ...] = ()
    """Key columns where the topic has no Kafka keys."""
    ignored_key_fields: tuple[str, ...] = ()
    """Fields of the Kafka key that are left out: keys are unique without them."""
    events: Literal["auto", "envelope", "flattened"] = "auto"
    """Whether values are change-event envelopes or rows; ``auto`` tells by their fields."""
    tombstones: Literal["auto", "delete", "ignore"] = "auto"
    """What a null value means. ``auto``: a delete where events are flattened and have no field ``__deleted``."""
    fields_prefix: str = "__"
    """``add.fields.prefix`` of ``ExtractNewRecordState``: such fields are no columns unless the table has them."""
    headers_prefix: str = "__"
    """``add.headers.prefix`` likewise."""
    meta_columns: tuple[str, ...] = ()
    """Added fields that ``init`` makes columns of."""
    stored_row: Literal["auto", "lookup", "before"] = "auto"
    accept_coalescing: bool = False
    document_column: str = "document"
    """Documents: the column that gets the whole document, if the table has it; empty for none."""
    document_columns: tuple[tuple[str, str], ...] = ()
    """Documents: columns whose value is not the field of their name, with the dotted path of it."""
    document_form: Literal["plain", "extended"] = "plain"
    """Documents: JSON as one would query it, or canonical Extended JSON."""
