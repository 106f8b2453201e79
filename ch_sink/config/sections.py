"""One model per section of the configuration file."""

import re
from itertools import accumulate
from typing import Annotated, Any, Literal, Self
from urllib.parse import unquote, urlsplit, urlunsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    SerializationInfo,
    ValidationInfo,
    WithJsonSchema,
    field_serializer,
    field_validator,
    model_validator,
)

from ch_sink.config.properties import LIBRDKAFKA, REGISTRY, REGISTRY_PREFIX, SECRETS
from ch_sink.errors import ConfigError
from ch_sink.serve.listener import Address
from ch_sink.types.column import JsonType, TypeChoices


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, and errors never show values."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        populate_by_name=True,
        use_attribute_docstrings=True,  # for the JSON Schema
    )

    @field_serializer("*", mode="wrap", when_used="json")
    def _secrets(self, value: Any, inner: Any, info: SerializationInfo) -> Any:
        """Secrets are dumped as asterisks, unless the caller asks for them: ``context={"secrets": True}``."""
        if info.context and info.context.get("secrets"):
            if isinstance(value, SecretStr):
                return value.get_secret_value()
            if isinstance(value, dict):
                return {k: v.get_secret_value() if isinstance(v, SecretStr) else v for k, v in value.items()}
        return inner(value)


_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"b": 1, "k": 1024, "m": 1024**2, "g": 1024**3}


def _seconds(value: object) -> object:
    """``10``, ``"500ms"``, ``"10 seconds"``, ``"2 min"``, ``"30d"`` in seconds."""
    if not isinstance(value, str):
        return value
    found = re.fullmatch(
        r"\s*(\d+(?:\.\d+)?)\s*(ms|milliseconds?|s|secs?|seconds?|m|mins?|minutes?|h|hours?|d|days?)?\s*", value
    )
    if not found:
        raise ValueError('is not a duration; write for example 10, "500ms", "10 seconds" or "2 minutes"')
    unit = found[2] or "s"
    return float(found[1]) * _SECONDS["ms" if unit.startswith(("ms", "milli")) else unit[0]]


def _size(value: object) -> object:
    """``67108864``, ``"64 MiB"``, ``"64m"`` in bytes."""
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"\s*(\d+)\s*(?:([kmg])i?b?|b(?:ytes)?)?\s*", value.lower())
    if not found:
        raise ValueError('is not a size; write for example 67108864 or "64 MiB"')
    return int(found[1]) * _BYTES[found[2] or "b"]


def _share(value: object) -> object:
    """``0.01`` or ``"1%"``."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%?)\s*", value) if isinstance(value, str) else None
    if found is None:
        return value
    return float(found[1]) / 100 if found[2] else float(found[1])


def _words(value: object) -> object:
    """A list, or the same as text with commas (as in the environment and ``--set``)."""
    if isinstance(value, str):
        return tuple(word.strip() for word in value.split(",") if word.strip())
    return value


def _scalar(value: object) -> object:
    """A property's value as text; booleans as librdkafka and ClickHouse write them."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list):
        return ",".join(str(item) for item in value)
    return value


def _patience(value: object) -> object:
    """A duration; ``unlimited`` is None."""
    return None if value == "unlimited" else _seconds(value)


def _address(value: str) -> str:
    """``HOST:PORT``."""
    try:
        return str(Address.parse(value, "address"))
    except ConfigError as error:
        raise ValueError("is not an address; write HOST:PORT, for example 127.0.0.1:9095") from error


_TEXT_OR_NUMBER = WithJsonSchema({"type": ["number", "string"]})
_SCALAR = WithJsonSchema({"type": ["string", "number", "boolean"]})
_WORDS = WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]})


def _placeholder(value: str) -> str:
    """``hex:`` and the digits of UTF-8, as the connector decodes its setting; any other text is itself."""
    try:
        text = bytes.fromhex(value[4:]).decode() if value.startswith("hex:") else value
        if text:
            return text
        raise ValueError
    except ValueError as error:
        raise ValueError(
            "has no hexadecimal digits of a text in UTF-8 behind hex:; write what unavailable.value.placeholder has"
        ) from error


def _unwrapped(value: Any) -> Any:
    """Expressions without the parentheses around all of them, as ClickHouse writes a sorting key."""
    text = value.strip() if isinstance(value, str) else ""
    depths = list(accumulate((char == "(") - (char == ")") for char in text))
    whole = text.startswith("(") and text.endswith(")") and 0 not in depths[:-1]
    return text[1:-1] if whole else value


Seconds = Annotated[float, BeforeValidator(_seconds), _TEXT_OR_NUMBER]
ListenAt = Annotated[str, AfterValidator(_address)]
Patience = Annotated[Annotated[float, Field(ge=0)] | None, BeforeValidator(_patience), _TEXT_OR_NUMBER]
Bytes = Annotated[int, BeforeValidator(_size), _TEXT_OR_NUMBER]
Words = Annotated[tuple[str, ...], BeforeValidator(_words), _WORDS]
Property = Annotated[str, BeforeValidator(_scalar), _SCALAR]
SecretProperty = Annotated[SecretStr, BeforeValidator(_scalar), _SCALAR]
Name = Annotated[str, Field(min_length=1)]
Placeholder = Annotated[Name, AfterValidator(_placeholder)]


def user_from_url(given: Any) -> Any:
    """A section whose URL has no user and password any more: they move to their own keys, unless these are given."""
    url = given.get("url") if isinstance(given, dict) else None
    if not isinstance(url, str):
        return given
    try:
        parts = urlsplit(url)
    except ValueError:
        return given
    if "@" not in parts.netloc:
        return given
    bare = {**given, "url": urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))}
    if parts.username and "username" not in given:
        bare["username"] = unquote(parts.username)
    if parts.password and "password" not in given:
        bare["password"] = unquote(parts.password)
    return bare


class KafkaSection(Section):
    """The source of the change events. All other keys are librdkafka properties, which are passed on."""

    topic: Name
    properties: dict[str, Property] = Field(default_factory=dict)
    """Properties whose values may be shown."""
    secrets: dict[str, SecretStr] = Field(default_factory=dict, repr=False)
    """Properties whose values are never shown."""

    @model_validator(mode="before")
    @classmethod
    def _split(cls, given: Any) -> Any:
        """Move librdkafka's keys into ``properties`` and ``secrets``; other keys stay, and are refused as unknown."""
        if not isinstance(given, dict):
            return given
        rest = dict(given)
        for group in ("properties", "secrets"):
            if isinstance(rest.get(group), dict):
                rest = {**rest.pop(group), **rest}
        properties: dict[str, Any] = {}
        secrets: dict[str, Any] = {}
        for name in [n for n in rest if n in LIBRDKAFKA or n in REGISTRY]:
            (secrets if name in SECRETS else properties)[name] = rest.pop(name)
        _registry_user(properties, secrets)
        return {"properties": properties, "secrets": secrets, **rest}

    @model_validator(mode="after")
    def _has_brokers(self, info: ValidationInfo) -> Self:
        if not self.bootstrap and not (info.context or {}).get("without_brokers"):
            raise ValueError("bootstrap.servers is missing; it lists the brokers as host:port, separated by commas")
        return self

    @property
    def bootstrap(self) -> str:
        """The brokers, as written; empty where a DataFrame brings the records."""
        return self.properties.get("bootstrap.servers") or self.properties.get("metadata.broker.list", "")

    def client(self) -> dict[str, str]:
        """The properties for librdkafka, secrets in the clear."""
        every = {**self.properties, **{name: value.get_secret_value() for name, value in self.secrets.items()}}
        return {name: value for name, value in every.items() if not name.startswith(REGISTRY_PREFIX)}

    def registry(self) -> dict[str, str]:
        """The schema registry client's properties without their prefix, secrets in the clear; empty for none."""
        every = {**self.properties, **{name: value.get_secret_value() for name, value in self.secrets.items()}}
        return {
            name.removeprefix(REGISTRY_PREFIX): value
            for name, value in every.items()
            if name.startswith(REGISTRY_PREFIX)
        }


def _registry_user(properties: dict[str, Any], secrets: dict[str, Any]) -> None:
    """A user and password in the registry's URL move to the secrets."""
    url = properties.get(REGISTRY_PREFIX + "url")
    if not isinstance(url, str) or "@" not in url:
        return
    start, _, rest = url.partition("//")
    user, at, host = rest.partition("@")
    if at and "/" not in user:
        properties[REGISTRY_PREFIX + "url"] = f"{start}//{host}"
        secrets.setdefault(REGISTRY_PREFIX + "basic.auth.user.info", unquote(user))


class ClickHouseSection(Section):
    """The server and the target table."""

    url: str
    """``http://host:8123`` or ``https://host:8443``, optionally with a path for a proxy."""
    database: Name = "default"
    table: Name
    username: str = "default"
    password: SecretStr = SecretStr("")
    cluster: str | None = None
    """``init`` adds ``ON CLUSTER`` with this name to its statements."""
    settings: dict[str, Property] = Field(default_factory=dict)
    """Settings sent with every query, except those that exactly-once delivery depends on."""
    connect_timeout: Seconds = Field(default=10.0, gt=0)
    timeout: Seconds = Field(default=300.0, gt=0)
    """Limit for one request."""
    compression: Literal["lz4", "zstd", "none"] = "lz4"
    """Compression of the Arrow buffers that are sent."""
    verify: bool = True
    """Whether the server's certificate is checked."""
    ca_cert: str | None = None
    client_cert: str | None = None
    client_cert_key: str | None = None
    http_proxy: SecretStr | None = None

    @model_validator(mode="before")
    @classmethod
    def _user_from_url(cls, given: Any) -> Any:
        """A user and password in the URL move to their own keys, so that the URL can be shown."""
        return user_from_url(given)

    @field_validator("url")
    @classmethod
    def _http(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise ValueError("is not a URL; write http://host:8123 or https://host:8443") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be the HTTP address of ClickHouse, such as http://host:8123 or https://host:8443")
        if parts.query or parts.fragment:
            raise ValueError("has a query; ClickHouse settings go to clickhouse.settings")
        if port in (9000, 9440):
            raise ValueError("names the port of the native protocol; the HTTP port is 8123, or 8443 with TLS")
        return url.rstrip("/")

    def connection(self) -> dict[str, Any]:
        """Arguments of :class:`ch_sink.clickhouse.ClickHouseSettings`, secrets in the clear."""
        return {
            "url": self.url,
            "database": self.database,
            "username": self.username,
            "password": self.password.get_secret_value(),
            "settings": tuple(sorted(self.settings.items())),
            "connect_timeout": self.connect_timeout,
            "timeout": self.timeout,
            "compression": self.compression,
            "verify": self.verify,
            "ca_cert": self.ca_cert,
            "client_cert": self.client_cert,
            "client_cert_key": self.client_cert_key,
            "http_proxy": self.http_proxy.get_secret_value() if self.http_proxy else None,
        }

    @field_validator("settings")
    @classmethod
    def _pinned(cls, settings: dict[str, str]) -> dict[str, str]:
        pinned = sorted(_PINNED & settings.keys())
        if pinned:
            raise ValueError(f"{', '.join(pinned)} cannot be set: exactly-once delivery depends on it")
        return settings


_PINNED = frozenset(
    """
    async_insert insert_deduplicate insert_deduplication_token deduplicate_insert
    deduplicate_blocks_in_dependent_materialized_views max_insert_threads input_format_parallel_parsing
    max_insert_block_size min_insert_block_size_rows min_insert_block_size_bytes
    distributed_foreground_insert insert_distributed_sync input_format_null_as_default
    """.split()
)


class FlattenedSection(Section):
    """Events flattened by ``ExtractNewRecordState``."""

    fields_prefix: str = "__"
    """The transformation's ``add.fields.prefix``; such fields are columns only if the table has them."""
    headers_prefix: str = "__"
    """Its ``add.headers.prefix``."""
    columns: Words = ()
    """Added fields for which ``init`` creates columns."""

    @field_validator("fields_prefix")
    @classmethod
    def _distinguishing(cls, prefix: str) -> str:
        if not prefix:
            raise ValueError(
                "without a prefix, added fields cannot be told from columns of these names: give the transformation an "
                "add.fields.prefix, or add headers instead (add.headers)"
            )
        return prefix


class ErrorsSection(Section):
    """How many records may become dead letters before the stream stops. Without a limit it never does."""

    max: int | None = Field(default=None, ge=0)
    """Dead letters of the topic that were neither applied nor dropped since."""
    max_rate: Annotated[float | None, BeforeValidator(_share), _TEXT_OR_NUMBER] = Field(default=None, ge=0, lt=1)
    """Their share of the newest 1,000 records or more, such as ``0.01`` or ``1%``."""


class VersionSection(Section):
    """The computation of row versions."""

    strategy: Literal["auto", "source_position", "kafka_offset", "source_time"] = "auto"


class DocumentSection(Section):
    """The mapping of documents to columns (MongoDB)."""

    column: str = "document"
    """The column that receives the whole document, if the table has it; empty for none."""
    columns: dict[str, Name] = Field(default_factory=dict)
    """Column → dotted path of its value; other columns receive the top-level field of the same name."""
    keys: Literal["plain", "typed"] = "plain"
    """The form of ``_id`` in a text column. ``plain``: its bare text; ``typed``: JSON, with quotes around strings."""


class TablesSection(Section):
    """Names of the sink's own tables, in the target's database."""

    ledger: Name = "ch_sink_ledger"
    dead_letters: Name = "ch_sink_dead_letters"
    handover: Name = "ch_sink_handover"
    pending: Name = "ch_sink_pending"
    columns: Name = "ch_sink_columns"


class SparkSection(Section):
    """The Spark application of ``ch_sink run``."""

    master: str | None = None
    conf: dict[str, SecretProperty] = Field(default_factory=dict, repr=False)
    """Spark's properties. Which of them are secrets, such as a key of an object store, only Spark knows."""


class InitSection(Section):
    """The table that ``ch_sink init`` creates. Expressions are ClickHouse SQL."""

    order_by: Annotated[Words, BeforeValidator(_unwrapped)] = ()
    partition_by: str = ""
    ttl: str = ""
    replication: Literal["none", "path", "server"] = "none"
    allow_nullable_key: bool = False
    low_cardinality: bool = True
    arrays: Literal["nullable", "empty_for_null"] = "nullable"
    """Arrays and maps that can be null: ``Nullable(Tuple(items Array(…)))``, or ``Array(…)`` with null as empty."""
    json_type: JsonType = "String"
    """Type of the columns for the source's JSON."""
    json_columns: dict[str, JsonType] = Field(default_factory=dict)
    """Columns whose type differs from ``json_type``."""
    document_type: JsonType = "String"
    """Type of the column for whole documents."""
    row_policy_roles: Words = ()
    settings: dict[str, Property] = Field(default_factory=dict)

    def types(self) -> TypeChoices:
        """The choices among column types."""
        return TypeChoices(
            low_cardinality=self.low_cardinality,
            arrays=self.arrays,
            json_type=self.json_type,
            json_columns=tuple(self.json_columns.items()),
            document_type=self.document_type,
        )
