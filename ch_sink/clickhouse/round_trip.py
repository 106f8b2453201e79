"""A round trip of values whose types servers have been seen to read or write in a way of their own, without an error.

Each sample is sent as it is inserted, and read back as it is looked up and as the server shows it. A value that is
wrong in both directions comes back as it was sent, so what the server shows decides.
"""

import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from ch_sink.clickhouse.arrow_io import Keys, conform
from ch_sink.clickhouse.client import Client
from ch_sink.clickhouse.lookup import ClickHouseLookup
from ch_sink.clickhouse.schema import detect
from ch_sink.clickhouse.settings import EVERY_TYPE
from ch_sink.clickhouse.writer import ClickHouseWriter
from ch_sink.errors import AccessDenied, ClickHouseError, TableError
from ch_sink.model.policy import Policy
from ch_sink.ports import Insert
from ch_sink.table.model import TargetTable
from ch_sink.types.arrow import arrow_type, carried, sent_type, without_unreadable_nulls
from ch_sink.types.chtype import ChType, parse_type
from ch_sink.types.sql import OWN, quote

log = logging.getLogger(__name__)

_UUID = "61f0c404-5cb3-11e7-907b-a6006ad3dba0"
_DIGITS = "-12345678901234567890123456789012345678.12345678901234567890123456789012345678"


@dataclass(frozen=True, slots=True)
class _Sample:
    """A value of a risky type, and the text in which the server shows it."""

    kind: str
    value: Any
    text: str
    is_key: bool = True


_SAMPLES: dict[str, _Sample] = {
    "UUID": _Sample("Nullable(UUID)", _UUID, _UUID),
    "Time": _Sample("Nullable(Time)", "-838:00:01", "-838:00:01"),
    "Time64": _Sample("Nullable(Time64(6))", "838:00:00.000001", "838:00:00.000001"),
    "Decimal(76, 38)": _Sample("Nullable(Decimal(76, 38))", Decimal(_DIGITS), _DIGITS),
    "DateTime64": _Sample(
        "Nullable(DateTime64(6, 'UTC'))",
        datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
        "1969-12-31 23:59:59.999999",
    ),
    "Enum": _Sample("Nullable(Enum8('a' = 1, 'b' = -2))", -2, "b"),
    "LowCardinality(Nullable)": _Sample("LowCardinality(Nullable(String))", b"a", "a"),
    "Array(UUID)": _Sample("Array(UUID)", [_UUID], f"['{_UUID}']", is_key=False),
    "Nullable(Tuple)": _Sample(
        "Nullable(Tuple(items Array(Nullable(String))))", {"items": [b"a", None]}, "(['a',NULL])", is_key=False
    ),
}
FAMILIES = tuple(_SAMPLES)
"""The risky types."""
_EMPTY: dict[str, tuple[Any, str]] = {"Array(UUID)": ([], "[]")}
"""Value and text of null where the type has none."""
_TUPLES = ("Tuple", "Point")


@dataclass(frozen=True, slots=True)
class Changed:
    """A risky type of which the server does not give back what it was sent."""

    family: str
    why: str
    refused: bool = False
    """The server said so."""


def families_of(kinds: Iterable[str]) -> frozenset[str]:
    """The risky types among these column types, within arrays, maps and tuples too."""
    return frozenset(family for kind in kinds for family in _families(parse_type(kind)))


def _families(tree: ChType) -> Iterator[str]:
    bare = tree.bare
    if tree.name == "LowCardinality" and tree.nullable:
        yield "LowCardinality(Nullable)"
    if tree.name == "Nullable" and bare.name in _TUPLES:
        yield "Nullable(Tuple)"
    if bare.name in ("UUID", "Time", "Time64", "DateTime64"):
        yield bare.name
    elif bare.name in ("Enum8", "Enum16"):
        yield "Enum"
    elif bare.name == "Decimal" and bare.precision > 38:
        yield "Decimal(76, 38)"
    for item in bare.items:
        inner = list(_families(item))
        yield from inner
        if "UUID" in inner:
            yield "Array(UUID)"


def expect_faithful(client: Client, table: TargetTable) -> None:
    """Send and read back the risky types that the table has, those that this client has not tried yet.

    Raises TableError if a value comes back as another one; ClickHouseError if the server does not answer.
    """
    kinds = {column.name: column.type for column in table.columns if column.insertable}
    untried = families_of(kinds.values()) - client.faithful
    if not untried:
        return
    try:
        changed = sent_and_read(client, sorted(untried))
    except AccessDenied as error:
        log.warning("whether the server keeps values of all types was not tested: %s", error)
        changed = []
    if changed:
        column, kind = next((n, k) for n, k in kinds.items() if changed[0].family in families_of([k]))
        raise TableError(
            f"{table.qualified}: ClickHouse {client.server_version} does not keep values like those of column "
            f"{column!r} ({kind}): {changed[0].why}",
            hint="Upgrade the server, or give the column another type (docs/servers.md).",
        )
    client.faithful |= untried


def sent_and_read(client: Client, families: Sequence[str]) -> list[Changed]:
    """Send a row of these types along with a question, and read it back. Raises ClickHouseError if it is temporary."""
    rows = _rows(families)

    def ask(names: Sequence[str]) -> list[Changed]:
        structure = [("id", "UInt8"), *((_column(name), sent_type(_SAMPLES[name].kind)) for name in names)]
        sent = Keys("_sent", rows.select([name for name, _ in structure]), structure)
        shown = ", ".join(f"{carried(c, k)} AS {OWN}{c}, toString({c}) AS {OWN}text_{c}" for c, k in structure[1:])
        found = client.arrow(
            f"SELECT {shown} FROM _sent ORDER BY id", settings=EVERY_TYPE, keys=sent, doing="test the column types"
        )
        pairs = {name: (found[OWN + _column(name)], found[f"{OWN}text_{_column(name)}"]) for name in names}
        return list(_compared(names, pairs))

    return _each(families, ask)


def stored_and_read(client: Client, database: str, policy: Policy, families: Sequence[str]) -> list[Changed]:
    """Store rows of these types in a table of their own, look them up and drop it.

    Raises AccessDenied if the user may not create, fill or drop a table; ClickHouseError if it is temporary.
    """
    name = f"__ch_sink_round_trip_{uuid.uuid4().hex[:8]}"
    place = f"{quote(database)}.{quote(name)}"

    def store(names: Sequence[str]) -> list[Changed]:
        columns = ", ".join(f"{_column(n)} {_SAMPLES[n].kind}" for n in names)
        create = (
            f"CREATE TABLE {place} (id UInt8, {columns}, _version UInt64) ENGINE = ReplacingMergeTree(_version) "
            "ORDER BY id COMMENT 'ch_sink check: dropped after it'"
        )
        client.command(create, settings=EVERY_TYPE, again=False, doing="create a table to try the column types")
        try:
            return list(_stored(client, detect(client, database, name, policy), names))
        finally:
            client.command(f"DROP TABLE IF EXISTS {place}", doing=f"drop {name}, which tested the column types")

    return _each(families, store)


def _stored(client: Client, table: TargetTable, names: Sequence[str]) -> Iterator[Changed]:
    writer, rows = ClickHouseWriter(client, table), _rows(names)
    rows = rows.append_column("_version", pa.array([1, 1], pa.uint64()))
    writer.write(Insert(rows, "round trip"), f"{table.name}/plain")
    again = rows.set_column(0, "id", pa.array([3, 4], pa.uint8()))
    writer.write(Insert(again, "round trip"), f"{table.name}/fenced", fence=_Open())
    texts = ", ".join(f"toString({_column(name)}) AS {_column(name)}" for name in names)
    shown = client.arrow(f"SELECT {texts} FROM {table.qualified} ORDER BY id", of=table, doing="read the column types")
    found = ClickHouseLookup(client, table, ("id",)).fetch(pa.table({"id": pa.array([1, 2, 3, 4], pa.uint8())})).rows
    found = found.sort_by("id")
    for half in (slice(0, 2), slice(2, 4)):
        columns = {n: (found[_column(n)][half], shown[_column(n)][half]) for n in names}
        yield from _compared(names, columns)
    for name in names:
        if _SAMPLES[name].is_key:
            of_keys = ClickHouseLookup(client, table, (_column(name),)).fetch(rows.select([_column(name)]))
            if of_keys.rows.num_rows != 2:
                yield Changed(name, f"{of_keys.rows.num_rows} of 2 rows are found by key")


@dataclass(frozen=True, slots=True)
class _Open:
    """A fence that lets every insert through."""

    execution: str = ""
    repeats: bool = False
    condition: str = "1"
    query_id: str = ""
    partition_id: str = ""

    def check(self) -> None: ...


def _each(families: Sequence[str], attempt: Callable[[Sequence[str]], list[Changed]]) -> list[Changed]:
    """The changes that an attempt finds; if the server refuses the types together, each is tried alone."""
    try:
        return list({one.family: one for one in attempt(families)}.values())
    except AccessDenied:
        raise
    except ClickHouseError as error:
        if error.temporary:
            raise
        if len(families) == 1:
            return [Changed(families[0], error.message, refused=True)]
    except pa.ArrowException as error:
        if len(families) == 1:
            return [Changed(families[0], str(error))]
    return [changed for family in families for changed in _each([family], attempt)]


def _rows(families: Sequence[str]) -> pa.Table:
    """A row with the sample of each type, and one of nulls."""
    values = {}
    for name in families:
        kind, sample = _SAMPLES[name].kind, _SAMPLES[name].value
        values[_column(name)] = without_unreadable_nulls(pa.chunked_array([[sample, None]], arrow_type(kind)), kind)
    return pa.table({"id": pa.array([1, 2], pa.uint8()), **values})


def _compared(families: Sequence[str], found: dict[str, tuple[pa.ChunkedArray, pa.ChunkedArray]]) -> Iterator[Changed]:
    """The types that came back as something else, as values or as text."""
    for name in families:
        sample = _SAMPLES[name]
        none, no_text = _EMPTY.get(name, (None, None))
        kind = arrow_type(sample.kind)
        values = conform(found[name][0], kind).to_pylist()
        texts = [None if text is None else text.decode("utf-8", "replace") for text in found[name][1].to_pylist()]
        wanted = pa.array([sample.value, none], kind).to_pylist()
        if texts != [sample.text, no_text]:
            yield Changed(name, f"{sample.kind} {[sample.text, no_text]} became {texts}")
        elif values != wanted:
            yield Changed(name, f"{sample.kind} {wanted} comes back as {values}")


def _column(family: str) -> str:
    return f"c{FAMILIES.index(family)}"
