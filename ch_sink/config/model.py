"""The whole configuration of one stream."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from ch_sink.config.sections import (
    Bytes,
    ClickHouseSection,
    DocumentSection,
    ErrorsSection,
    FlattenedSection,
    InitSection,
    KafkaSection,
    ListenAt,
    Name,
    Patience,
    Placeholder,
    Property,
    Seconds,
    Section,
    SparkSection,
    TablesSection,
    VersionSection,
    Words,
    user_from_url,
)
from ch_sink.errors import ConfigError
from ch_sink.model.policy import (
    ROUTED_TABLE,
    ChangePolicy,
    ColumnPolicy,
    DocumentPolicy,
    EventPolicy,
    KeyPolicy,
    Policy,
    TablePolicy,
    VersionPolicy,
)
from ch_sink.table.rollup import RollupChoice
from ch_sink.table.views import MOMENTS
from ch_sink.types.column import PLACEHOLDER, ValuePolicy

Mask = Literal["sha256", "sha512", "hmac-sha256", "redact"]


class ColumnsSection(Section):
    """Names are those of the source's columns, except those of ``add``."""

    exclude: Words = ()
    """Columns that are not stored."""
    rename: dict[str, Name] = Field(default_factory=dict)
    """Column of the source → column of the table."""
    mask: dict[str, Mask] = Field(default_factory=dict)
    """Column → what is stored instead of its text: a hash in hexadecimal digits, or ``***``."""
    mask_key: Annotated[SecretStr | None, Field(repr=False)] = None
    """The key of ``hmac-sha256``."""
    add: dict[str, Property] = Field(default_factory=dict)
    """Column of the table → a constant as SQL, such as ``'eu'`` in single quotes."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        targets = [*self.rename.values(), *self.add]
        twice = sorted({name for name in targets if targets.count(name) > 1})
        if twice:
            raise ValueError(f"fills the column {twice[0]!r} twice; give each column one source")
        for group, names in (("rename", self.rename), ("mask", self.mask)):
            both = sorted(set(self.exclude) & set(names))
            if both:
                raise ValueError(f"excludes the column {both[0]!r} and has it in {group}; keep one of them")
        if "hmac-sha256" in self.mask.values() and not (self.mask_key and self.mask_key.get_secret_value()):
            raise ValueError(
                "masks with hmac-sha256, which needs mask_key; set the environment variable CH_SINK__COLUMNS__MASK_KEY"
            )
        return self

    def policy(self, source: tuple[str, ...] = ()) -> ColumnPolicy:
        """The choices as decoding takes them. ``source``: added columns that tell the rows of several topics apart."""
        return ColumnPolicy(
            exclude=self.exclude,
            rename=tuple(self.rename.items()),
            mask=tuple(self.mask.items()),
            mask_key=self.mask_key.get_secret_value() if self.mask_key else "",
            add=tuple(self.add.items()),
            source=source,
        )


SOURCE_KINDS = {
    "postgresql": ("postgresql", 5432),
    "postgres": ("postgresql", 5432),
    "mysql": ("mysql", 3306),
    "mariadb": ("mysql", 3306),
    "sqlserver": ("sqlserver", 1433),
    "mssql": ("sqlserver", 1433),
    "mongodb": ("mongodb", 27017),
    "mongodb+srv": ("mongodb", 27017),
}
"""Scheme → kind of database, default port."""


class SourceSection(Section):
    """The database that the connector reads. Streams run without it."""

    url: str
    """``postgresql://host:port/database``, ``mysql://…``, ``mariadb://…``, ``sqlserver://…`` or ``mongodb://…``.

    MongoDB's connection strings may name several hosts, and have options.
    """
    username: str = ""
    password: SecretStr = SecretStr("")
    table: str = ""
    """The table, as ``schema.table`` or, on MySQL and MongoDB, ``database.table``; may be a template.

    Else the one whose events are applied, or the topic's last two parts.
    """

    @model_validator(mode="before")
    @classmethod
    def _user_from_url(cls, given: Any) -> Any:
        """A user and password in the URL move to their own keys, so that the URL can be shown."""
        return user_from_url(given)

    @field_validator("url")
    @classmethod
    def _known(cls, url: str) -> str:
        try:
            parts = urlsplit(url)
            several = parts.scheme.startswith("mongodb") and "," in parts.netloc
            sound = parts.scheme in SOURCE_KINDS and (several or (bool(parts.hostname) and (parts.port or 1) > 0))
        except ValueError:
            sound = False
        if not sound:
            raise ValueError(
                "must be the address of a database, such as postgresql://host:5432/shop or mysql://host/shop"
            )
        if "password=" in parts.query.lower():
            raise ValueError("must not have a password among its options: they appear in messages")
        return url


_NO_DIFFERENCE = ("min", "max", "uniq", "median", "any", "quantile")


class RollupSection(Section):
    """One rollup; its key is the name of its table. Expressions are ClickHouse SQL over the table's columns."""

    by: dict[Name, Name] = Field(min_length=1)
    """Column → expression: a group for each value."""
    sum: dict[Name, Name] = Field(default_factory=dict)
    """Column → expression of an integer or Decimal type, summed up in the widest type of its kind."""
    count: Name | None = None
    """Column that counts the rows of a group."""
    avg: dict[Name, Name] = Field(default_factory=dict)
    """Column → expression; the sum of its values that are not null by their number."""
    where: str = ""
    """Only rows that meet this condition are summed up."""
    allow_float: bool = False
    """Sum floating-point numbers, which do not cancel exactly."""

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and (found := [name for name in _NO_DIFFERENCE if name in given]):
            raise ValueError(
                f"has {found[0]}, which cannot be undone: once a row is deleted, nothing shows what "
                f"{found[0]} was without it; leave it out, and ask the table's view for it"
            )
        return given

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        names = [*self.by, *self.sum, *self.avg, *([self.count] if self.count else [])]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"has two columns {twice[0]!r}; give each its own name")
        if own := [name for name in names if name.startswith("_")]:
            raise ValueError(f"has a column {own[0]!r}; names that begin with _ are reserved")
        if not (self.sum or self.avg or self.count):
            raise ValueError("computes nothing; give it sum, count or avg")
        return self

    def choice(self, name: str) -> RollupChoice:
        """The rollup of this name."""
        by, sums, avgs = (tuple(found.items()) for found in (self.by, self.sum, self.avg))
        return RollupChoice(name, by, sums, avgs, self.count or "", self.where, self.allow_float)


class Config(Section):
    """One topic into one table. Only ``kafka`` and ``clickhouse`` have to be given."""

    kafka: KafkaSection
    clickhouse: ClickHouseSection
    stream: str = ""
    """Name in the ledger and in tokens; built from topic and table if empty."""
    format: Literal["auto", "json", "avro"] = "auto"
    metrics: ListenAt | None = None
    """Address of the job's metrics, ``HOST:PORT``. The first file of a job that names one decides."""

    events: Literal["auto", "envelope", "flattened"] = "auto"
    tombstones: Literal["auto", "delete", "ignore"] = "auto"
    flattened: FlattenedSection = FlattenedSection()

    start: Literal["ledger", "earliest", "latest"] = "ledger"
    """The place where a stream begins whose topic is new to the ledger; ``ledger`` means the earliest offset."""
    on_data_loss: Literal["fail", "continue"] = "fail"
    """Offsets that were dropped before they were read: stop, or continue at the earliest and count the gap."""

    purge_after: Annotated[Seconds, Field(ge=3600)] | None = None
    """The age of a deleted row at which the job, or `ch_sink purge`, removes it from the disk; None: never."""

    max_offsets_per_trigger: int | None = Field(default=1_000_000, ge=1)
    trigger_interval: Seconds = Field(default=1.0, ge=0)
    flush_interval: Seconds | None = Field(default=None, ge=0)
    """How long a few new events may wait for more; by default not at all while few streams of the job are active."""
    flush_rows: int = Field(default=10_000, ge=1)
    """Events of which there are as many do not wait."""
    chunk_offsets: int = Field(default=50_000, ge=1)
    chunk_bytes: Bytes = Field(default=64 * 1024 * 1024, ge=1024)

    version: VersionSection = VersionSection()
    deletes: Literal["fail", "ignore"] = "fail"
    truncate: Literal["apply", "ignore", "fail"] = "fail"
    on_unresolved: Literal["dead_letter", "null"] = "dead_letter"
    on_bad_record: Literal["dead_letter", "fail"] = "dead_letter"
    errors: ErrorsSection = ErrorsSection()
    out_of_range: Literal["fail", "clamp", "null"] = "fail"
    decimal_handling: Literal["precise", "double", "string"] = "precise"
    """The connector's ``decimal.handling.mode``; like the next two for events that do not declare their types."""
    binary_handling: Literal["bytes", "base64", "base64-url-safe", "hex"] = "bytes"
    time_precision: Literal[
        "adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds"
    ] = "adaptive"
    evolve: Literal["add_columns", "ignore", "fail"] = "fail"
    key_columns: Words = ()
    ignored_key_fields: Words = ()
    sign_column: str | None = None
    placeholder: Placeholder = PLACEHOLDER
    redelivery_scan: int = Field(default=10_000, ge=0)
    handover_deadline: Seconds = Field(default=600.0, ge=0)
    """How long a change waits for the values of a row that changed its key, before ``on_unresolved`` applies."""

    columns: ColumnsSection = ColumnsSection()
    rollups: dict[Name, RollupSection] = Field(default_factory=dict)
    """Tables of sums beside the target, by name; may be templates."""
    merge: bool = False
    """Other topics are written to the same table; an added column tells their rows apart."""
    split: bool = False
    """The topic carries several source tables; each becomes a stream, named by its events. Set where that was done."""
    source_table: str = ""
    """Only the events of this source table are applied: ``schema.table``, or as much of it as is unique."""
    engine: str | None = None
    """Of new tables: replacing (the default), sign-replacing, collapsing, versioned-collapsing or append."""
    create_tables: bool = False
    """A job creates the table when it first sees the topic."""
    discovery_interval: Seconds = Field(default=30.0, gt=0)
    """How often a job of many topics looks for new ones."""
    retry_for: Patience = 3600.0
    """How long unavailable servers are retried; None: for ever (``unlimited``)."""

    document: DocumentSection = DocumentSection()
    state_tables: TablesSection = TablesSection()
    """Names of the sink's own tables."""
    spark: SparkSection = SparkSection()
    source: SourceSection | None = None
    """The database that the connector reads; ``verify`` and ``repair`` compare tables with it."""
    init: InitSection = InitSection()

    @model_validator(mode="after")
    def _has_registry(self) -> Self:
        if self.format == "avro" and not self.kafka.registry().get("url"):
            raise ValueError("format: avro needs kafka.schema.registry.url, the address of the schema registry")
        return self

    @model_validator(mode="after")
    def _key_is_whole(self) -> Self:
        for group, names in (("excludes", self.columns.exclude), ("masks", self.columns.mask)):
            both = sorted(set(self.key_columns) & set(names))
            if both:
                raise ValueError(
                    f"columns {group} {both[0]!r}, which is one of key_columns: without it rows cannot be distinguished"
                )
        return self

    @model_validator(mode="after")
    def _rollups_have_one_stream(self) -> Self:
        if self.rollups and self.merge:
            raise ValueError("rollups and merge: true exclude each other: a rollup has one stream that fills it")
        names = [name for rollup in self.rollups for name in (rollup, f"{rollup}_current")]
        table = self.clickhouse.table
        own = {table, f"{table}_current", *(table + end for end in MOMENTS), *self.state_tables.model_dump().values()}
        if taken := sorted({name for name in names if name in own or names.count(name) > 1}):
            raise ValueError(f"rollups has the name {taken[0]!r}, which is taken; give the rollup another one")
        return self

    @property
    def stream_name(self) -> str:
        """The stream's name in the ledger and in deduplication tokens."""
        return self.stream or f"{self.kafka.topic}:{self.clickhouse.database}.{self.clickhouse.table}"

    @property
    def consumer_group(self) -> str:
        """Consumer group whose offsets are committed for lag tools, and show whether ClickHouse was taken back.

        So it belongs to one stream of a topic, also where the file names one group for all streams of the topic.
        """
        named = self.kafka.properties.get("group.id")
        if named and self.source_table:
            return f"{named}.{self.stream_name}"
        return named or f"ch_sink.{self.stream_name}"

    def fingerprint(self) -> str:
        """Changes with every key but secrets, of which nothing may lie in the ledger, not even a digest."""
        return sha256(self.model_dump_json().encode()).hexdigest()[:16]

    def rollup_choices(self) -> tuple[RollupChoice, ...]:
        """The rollups that the stream keeps. Raises ConfigError where they could not be kept right."""
        if self.rollups and self.clickhouse.cluster:
            raise ConfigError(
                "rollups and clickhouse.cluster exclude each other: on several servers a rollup and its table could be "
                "ahead of each other",
                hint="Rollups need a table of one server.",
            )
        return tuple(rollup.choice(name) for name, rollup in self.rollups.items())

    @property
    def state_database(self) -> str:
        """Database of the ledger and the sink's other tables."""
        return self.clickhouse.database

    @property
    def _ignored(self) -> tuple[str, ...]:
        """Key fields that are left out; of a single source table also the one that names it in the keys of a router."""
        return (*self.ignored_key_fields, ROUTED_TABLE) if self.source_table else self.ignored_key_fields

    def policy(self) -> Policy:
        """The choices on which decoding, ordering and merging depend."""
        flattened, document = self.flattened, self.document
        return Policy(
            values=ValuePolicy(
                out_of_range=self.out_of_range,
                decimal_handling=self.decimal_handling,
                binary_handling=self.binary_handling,
                time_precision=self.time_precision,
                placeholder=self.placeholder,
            ),
            events=EventPolicy(
                form=self.events,
                tombstones=self.tombstones,
                fields_prefix=flattened.fields_prefix,
                headers_prefix=flattened.headers_prefix,
                meta_columns=flattened.columns,
                of_one_table=bool(self.source_table),
            ),
            keys=KeyPolicy(columns=self.key_columns, ignored=self._ignored),
            documents=DocumentPolicy(document.column, tuple(document.columns.items()), document.keys),
            versions=VersionPolicy(self.version.strategy, self.redelivery_scan),
            changes=ChangePolicy(
                deletes=self.deletes,
                truncate=self.truncate,
                on_unresolved=self.on_unresolved,
                on_bad_record=self.on_bad_record,
                evolve=self.evolve,
            ),
            table=TablePolicy(sign_column=self.sign_column, notes=self.state_tables.columns),
            columns=self.columns.policy(tuple(self.columns.add) if self.merge else ()),
        )

    def to_task_json(self) -> str:
        """Everything, *secrets in the clear*: only to be sent to a Spark task, never for a log or a plan."""
        return self.model_dump_json(context={"secrets": True})

    @classmethod
    def from_task_json(cls, text: str) -> Self:
        """The reverse of :meth:`to_task_json`."""
        return cls.model_validate_json(text, context={"without_brokers": True})
