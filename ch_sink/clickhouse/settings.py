"""Settings of the connection, and those under which a query means what it says, whatever the user's profile has.

Profiles may cut answers short instead of failing, answer from a cache, leave out rows, or give other results for no
rows. A lookup then finds less than there is, and a comparison calls rows missing or equal that are not.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from ch_sink.clickhouse.failures import Retry

_LIMITS = ("read", "group_by", "sort", "result", "timeout", "set", "join", "distinct", "transfer")

PLAIN_MEANING: Mapping[str, str | int] = {
    # Too much is an error, not an answer in part.
    **{f"{name}_overflow_mode": "throw" for name in _LIMITS},
    "read_overflow_mode_leaf": "throw",
    "timeout_overflow_mode_leaf": "throw",
    "skip_unavailable_shards": 0,
    "limit": 0,
    "offset": 0,
    # What is stored now, all of it, and nothing that was deleted.
    "use_query_cache": 0,
    "additional_table_filters": "{}",
    "additional_result_filter": "",
    "apply_deleted_mask": 1,
    "lightweight_deletes_sync": 2,
    # No rows have a count, and a sum.
    "empty_result_for_aggregation_by_empty_set": 0,
    "aggregate_functions_null_for_empty": 0,
    "join_use_nulls": 0,
    # A time without a zone is the server's.
    "session_timezone": "",
    # The sink's own tables have the types that are written.
    "data_type_default_nullable": 0,
    # JSON is read as text: a number in quotes would be a text when it is inserted again.
    **{f"output_format_json_quote_{name}": 0 for name in ("64bit_integers", "64bit_floats", "decimals", "denormals")},
    # The driver reads names of types.
    "output_format_native_encode_types_in_binary_format": 0,
    # An INSERT … SELECT without a token is not refused.
    "deduplicate_insert_select": "enable_when_possible",
}
"""Each with its default."""
EVERY_TYPE: Mapping[str, str | int] = {
    "allow_suspicious_low_cardinality_types": 1,
    "allow_suspicious_fixed_string_types": 1,
    "allow_suspicious_variant_types": 1,
    "allow_suspicious_types_in_group_by": 1,
    "allow_suspicious_types_in_order_by": 1,
    "allow_experimental_variant_type": 1,
    "allow_experimental_dynamic_type": 1,
    "allow_experimental_json_type": 1,
    "enable_json_type": 1,
    # Off up to 26.3.
    "allow_experimental_nullable_tuple_type": 1,
    "enable_time_time64_type": 1,
}
"""For statements that name a table's types: it has them already."""
CUTTING = ("limit", "offset")
"""Those that hold for any question: they are sent from the first one on."""


def to_send(known: Mapping[str, str], own: Mapping[str, str | int]) -> dict[str, str | int]:
    """Those that have to be sent along.

    Args:
        known: the settings of this user on this server.
        own: the settings that the configuration names.
    """
    return {
        name: value
        for name, value in PLAIN_MEANING.items()
        if name in known and (known[name] != str(value) or name in own)
    }


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The parts of the URL."""

    interface: Literal["http", "https"]
    host: str
    port: int
    path: str


@dataclass(frozen=True, slots=True)
class ClickHouseSettings:
    """Connection settings of one stream; hashable, picklable, and never shown with the password. Times in seconds."""

    url: str = "http://localhost:8123"
    database: str = "default"
    """Database of tables that are named without one; it need not exist to connect."""
    username: str = "default"
    password: str = field(default="", repr=False)
    settings: tuple[tuple[str, str], ...] = ()
    """ClickHouse settings sent with every query; those that exactly-once inserts depend on cannot be overridden."""
    connect_timeout: float = 10.0
    timeout: float = 300.0
    """Of one request."""
    compression: Literal["lz4", "zstd", "none"] = "lz4"
    """Of the Arrow buffers that are sent."""
    verify: bool = True
    ca_cert: str | None = None
    client_cert: str | None = None
    client_cert_key: str | None = field(default=None, repr=False)
    http_proxy: str | None = field(default=None, repr=False)
    retry: Retry = field(default_factory=Retry)
    server: str = ""
    """The name of the only server whose answers count; empty for any."""

    @property
    def endpoint(self) -> Endpoint:
        """The URL's parts; the configuration has checked it."""
        parts = urlsplit(self.url)
        interface: Literal["http", "https"] = "https" if parts.scheme == "https" else "http"
        return Endpoint(
            interface, parts.hostname or "", parts.port or (8443 if parts.scheme == "https" else 8123), parts.path
        )
