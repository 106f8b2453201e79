"""The user's choices for one stream, grouped by the package that acts on them.

Functions take the group that they use; only entry points that pass groups on take the whole :class:`Policy`.
"""

import hashlib
import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal

from ch_sink.model.change import ChangeBatch
from ch_sink.types.column import ValuePolicy


@dataclass(frozen=True, slots=True)
class EventPolicy:
    """Policy for recognising records as change events."""

    form: Literal["auto", "envelope", "flattened"] = "auto"
    """Whether values are change-event envelopes or rows; ``auto`` decides by their fields. ``events`` in YAML."""
    tombstones: Literal["auto", "delete", "ignore"] = "auto"
    """The meaning of a null value. ``auto``: a delete if events are flattened and have no field ``__deleted``."""
    fields_prefix: str = "__"
    """``add.fields.prefix`` of ``ExtractNewRecordState``: such fields become columns only if the table has them."""
    headers_prefix: str = "__"
    """``add.headers.prefix``, likewise."""
    meta_columns: tuple[str, ...] = ()
    """Added fields that ``init`` turns into columns."""
    of_one_table: bool = False
    """Only the records of one source table count: a null value has to say which table it is of."""


ROUTED_TABLE = "__dbz__physicalTableIdentifier"
"""The field that Debezium's router adds to keys; it names the source table."""


@dataclass(frozen=True, slots=True)
class KeyPolicy:
    """The columns that identify a row."""

    columns: tuple[str, ...] = ()
    """Key columns if the topic has no Kafka keys."""
    ignored: tuple[str, ...] = ()
    """Fields of the Kafka key that are left out: keys are unique without them."""


@dataclass(frozen=True, slots=True)
class DocumentPolicy:
    """Policy for MongoDB's documents as columns. In YAML, the section ``document``."""

    column: str = "document"
    """The column that receives the whole document, if the table has it; empty for none."""
    columns: tuple[tuple[str, str], ...] = ()
    """Columns whose value is not the field of the same name, each with the dotted path of its field."""
    keys: Literal["plain", "typed"] = "plain"
    """Whether a text column holds ``_id`` as bare text, or as JSON that says its type."""


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """Policy for the versions of rows."""

    strategy: Literal["auto", "source_position", "kafka_offset", "source_time"] = "auto"
    redelivery_scan: int = 10_000
    """How many records before a backward step are searched for an identical record."""


@dataclass(frozen=True, slots=True)
class ChangePolicy:
    """Policy for changes that cannot simply be applied."""

    deletes: Literal["fail", "ignore"] = "fail"
    """Policy for a delete on ``ReplacingMergeTree(ver)`` that has no sign or is_deleted column."""
    truncate: Literal["apply", "ignore", "fail"] = "fail"
    on_unresolved: Literal["dead_letter", "null"] = "dead_letter"
    on_bad_record: Literal["dead_letter", "fail"] = "dead_letter"
    evolve: Literal["add_columns", "ignore", "fail"] = "fail"


@dataclass(frozen=True, slots=True)
class TablePolicy:
    """Policy for understanding the target table."""

    sign_column: str | None = None
    """Sign column of a ``ReplacingMergeTree(ver)``, if it is not called ``sign`` or ``_sign``."""
    notes: str = "ch_sink_columns"
    """The table, in the target's database, in which ``init`` notes the source types of columns."""


IDS = "_id"
"""The field of a document that identifies it, whatever the table's column is called."""
Origins = tuple[tuple[str, str], ...]
"""Columns of a table, each with what it is filled with: see `ColumnPolicy.origins`."""
IGNORED = "ignored_key_fields"
KEY_COLUMNS = "key_columns"
LEFT_OUT = "nothing"
"""The origin of a column that the stream leaves out."""
WHOLE = "the document"
"""The origin of the column of whole documents, if it has another name than usual."""
ADDED = "a field that the connector adds"
"""The origin of a column of ``flattened.columns``."""


def mask_function(kind: str, key: str = "") -> Callable[[bytes], bytes]:
    """What a mask makes of the bytes of a text."""
    if kind == "redact":
        return lambda _: b"***"
    if kind == "hmac-sha256":
        secret = key.encode()
        return lambda text: hmac.digest(secret, text, "sha256").hex().encode()
    made = {"sha256": hashlib.sha256, "sha512": hashlib.sha512}[kind]
    return lambda text: made(text).hexdigest().encode()


@dataclass(frozen=True, slots=True)
class ColumnPolicy:
    """Maps the source's columns to the table's. Names are the source's, except those of ``add`` and ``source``."""

    exclude: tuple[str, ...] = ()
    """Columns that are not stored."""
    rename: tuple[tuple[str, str], ...] = ()
    """Column of the source, column of the table."""
    mask: tuple[tuple[str, str], ...] = ()
    """Column, and what is stored instead of its values: sha256, sha512, hmac-sha256, redact."""
    mask_key: str = field(default="", repr=False)
    add: tuple[tuple[str, str], ...] = ()
    """Column of the table, and its constant value as SQL."""
    source: tuple[str, ...] = ()
    """Added columns that tell the rows of several topics in one table apart: they belong to the key."""

    def target(self, name: str) -> str:
        """The table's column for a column of the source."""
        return dict(self.rename).get(name, name)

    def masked(self, name: str, text: str) -> str:
        """What is stored for this text of a masked column."""
        return mask_function(dict(self.mask)[name], self.mask_key)(text.encode()).decode()

    def shown_key(self, key: Sequence[str]) -> tuple[str, ...]:
        """The columns by which views tell rows apart, for the source's key: not a constant that only sorts them."""
        return (*(name for name, _ in self.add if name in self.source), *map(self.target, key)) if key else ()

    @property
    def hides(self) -> bool:
        """Whether some of the source's values must not be stored."""
        return bool(self.exclude or self.mask)

    def origins(self) -> Origins:
        """Column of the table → what it is filled with, for those not filled with the source's column of their name.

        Of the key of a mask only four bytes of a digest are shown, less than the masked values show.
        """
        made = dict.fromkeys(self.left_out, LEFT_OUT)
        made |= {new: f"column {old}" for old, new in self.rename}
        for name, how in self.mask:
            key = hmac.digest(self.mask_key.encode(), b"", "sha256")[:4].hex() if how.startswith("hmac") else ""
            made[self.target(name)] = f"{how}{key} of {name}"
        return tuple(sorted({**made, **dict(self.add)}.items()))

    @property
    def left_out(self) -> frozenset[str]:
        """Columns that the stream does not fill even if the table has them."""
        filled = {*(new for _, new in self.rename), *dict(self.add)}
        return frozenset((*self.exclude, *(old for old, _ in self.rename))) - filled


@dataclass(frozen=True, slots=True)
class Policy:
    """All choices of one stream."""

    values: ValuePolicy = field(default_factory=ValuePolicy)
    events: EventPolicy = EventPolicy()
    keys: KeyPolicy = KeyPolicy()
    documents: DocumentPolicy = DocumentPolicy()
    versions: VersionPolicy = VersionPolicy()
    changes: ChangePolicy = ChangePolicy()
    table: TablePolicy = TablePolicy()

    def origins(self) -> Origins:
        """Column of the table → what it is filled with, where it is not the source's column or field of its name."""
        documents = self.documents
        made = dict.fromkeys(self.events.meta_columns, ADDED)
        made |= {name: f"field {path}" for name, path in documents.columns}
        if documents.column not in ("", DocumentPolicy().column):
            made[documents.column] = WHOLE
        if documents.keys == "typed":
            made[IDS] = "JSON that says its type"
        return tuple(sorted({**made, **dict(self.columns.origins())}.items()))

    def readings(self) -> Origins:
        """Setting → its value, of those that decide as what values are read; without those that have their default."""
        kept = {f.name: str(v) for f in fields(self.values) if (v := getattr(self.values, f.name)) != f.default}
        if self.keys.ignored:
            kept[IGNORED] = ", ".join(sorted(self.keys.ignored))
        if self.keys.columns:
            kept[KEY_COLUMNS] = ", ".join(sorted(self.keys.columns))
        return tuple(sorted(kept.items()))

    columns: ColumnPolicy = ColumnPolicy()


_GROUPS: dict[str, type[Any]] = {group.name: type(getattr(Policy(), group.name)) for group in fields(Policy)}
_FLAT_NAMES = {
    ("events", "form"): "events",
    ("keys", "columns"): "key_columns",
    ("keys", "ignored"): "ignored_key_fields",
    ("documents", "column"): "document_column",
    ("documents", "columns"): "document_columns",
    ("documents", "keys"): "document_keys",
    ("versions", "strategy"): "version_strategy",
    ("columns", "source"): "source_columns",
}
"""Choices whose flat name differs from their name in the group."""


@cache
def _places() -> dict[str, tuple[str, str]]:
    """The group and field of each choice, by its flat name."""
    return {
        _FLAT_NAMES.get((group, choice.name), choice.name): (group, choice.name)
        for group, kind in _GROUPS.items()
        for choice in fields(kind)
    }


def policy_of(**choices: Any) -> Policy:
    """A policy from flat names, as in ``policy_of(truncate="apply", version_strategy="kafka_offset")``.

    Raises TypeError for a name that is not a choice.
    """
    groups: dict[str, dict[str, Any]] = {group: {} for group in _GROUPS}
    for name, choice in choices.items():
        if name not in _places():
            raise TypeError(f"unknown choice {name!r}; the choices are {', '.join(sorted(_places()))}")
        group, attribute = _places()[name]
        groups[group][attribute] = choice
    return Policy(**{group: kind(**groups[group]) for group, kind in _GROUPS.items()})


@dataclass(frozen=True, slots=True)
class TopicProfile:
    """Facts learned from the records of one partition that decide how later ones are read.

    Decoding is a function of the records and their profile, so that two attempts decode the same bytes in the same way.
    """

    connector: str = ""
    """``source.connector`` of the rows (``flattened`` or ``flattened:<connector>`` if they are not envelopes)."""
    key_columns: tuple[str, ...] = ()
    """Names of the key's columns, in the key's order."""
    key_source: Literal["", "configuration", "row", "null value"] = ""
    """The origin of the key's columns; empty if they are not known yet."""
    key_offset: int = -1
    """Offset of the record from whose key they were learned."""
    documents: bool = False
    """Whether keys and images are those of documents."""
    null_deletes: bool | None = None
    """Whether a null value deletes its key's row (else it is a tombstone), as the last row says; None before it."""
    looked_back: bool = False
    """Whether the records before the first null values have been searched for a row."""
    choices: str = ""
    """Digest of the configuration under which this profile was learned."""

    @property
    def flattened(self) -> bool:
        """Whether rows come without envelopes."""
        return self.connector.startswith("flattened")

    def after(self, batch: ChangeBatch) -> "TopicProfile":
        """The profile after a batch: the last row decides what a null value means."""
        if not len(batch):
            return self
        deletes = batch.null_deletes is not None and bool(batch.null_deletes[-1])
        return replace(self, connector=batch.connector or self.connector, null_deletes=deletes)


UNREAD = TopicProfile()
"""The profile of a partition of which nothing has been read."""
