"""Upgrades a ledger of an earlier version: adds the columns of this version and rewrites the entries.

The earlier version knew the entries claim, intent, progress, cut, result and note. A note had its kind in ``topic_id``
and its text in ``details``, a claim its number in ``start_offset`` and all else in ``details``, a cut its offset in
``start_offset``, an intent its attempt in ``details``. Intents, progress and results are read as they are; the others
are rewritten. The old rows stay in the table and are not read any more.

`convert` may be repeated: a converted entry keeps the time of the old one, so that the engine replaces a repeated one.
"""

import ast
import json
import logging
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import msgspec
import pyarrow as pa

from ch_sink.clickhouse.client import Client
from ch_sink.clickhouse.ledger_rows import SCHEMA, Entry, row
from ch_sink.clickhouse.schema import execute
from ch_sink.clickhouse.state_table import StateTable
from ch_sink.errors import AccessDenied, ClickHouseError
from ch_sink.model.counted import counted
from ch_sink.ports import (
    BackwardStepSeen,
    ChangedColumn,
    ChunkCut,
    Claim,
    SchemaChangeBegun,
    SchemaChangeFinished,
    TopicFacts,
    TruncateFloor,
)
from ch_sink.table.templates import render
from ch_sink.types.sql import quote

__all__ = ["Form", "add_columns", "convert", "form_of", "last_claim"]

log = logging.getLogger("ch_sink")

_DONE = "by a later version of ch_sink"
_UNDER_WAY = "by a later version of ch_sink, which upgrades the ledger"
"""Run id of the claims by which a job of the earlier version sees that it has lost the stream."""


@dataclass(frozen=True, slots=True)
class Form:
    """The version that created the table."""

    is_current: bool
    has_details: bool
    """An earlier version created it, so that it may hold entries of that version."""

    @property
    def order(self) -> str:
        """The expression that orders a stream's entries: by claim first, since the clocks of two jobs may differ."""
        if not self.is_current:
            return "written"
        # One number is compared much faster than a tuple.
        return "bitOr(bitShiftLeft(toUInt128(claim_number), 64), toUInt128(written))"

    @property
    def claim(self) -> str:
        return "claim_number" if self.is_current else "0"

    @property
    def fact(self) -> str:
        return "fact" if self.is_current else "''"

    @property
    def attempt(self) -> str:
        return "attempt" if self.is_current else "toUInt32OrZero(details)"


_KNOWN_SECONDS = 60.0
"""How long the form of a table counts as known: the streams of a job have one ledger."""
_known: WeakKeyDictionary[Client, dict[str, tuple[float, Form]]] = WeakKeyDictionary()


def form_of(table: StateTable) -> Form:
    """The form of the ledger's table; a table that does not exist counts as current. Raises ClickHouseError."""
    known = _known.setdefault(table.client, {})
    since, form = known.get(table.qualified, (-math.inf, None))
    if form is not None and time.monotonic() - since < _KNOWN_SECONDS:
        return form
    columns = table.columns()
    form = Form(is_current=not columns or "claim_number" in columns, has_details="details" in columns)
    if columns and form.is_current:
        known[table.qualified] = time.monotonic(), form
    return form


def add_columns(table: StateTable, cluster: str | None) -> None:
    """Add the columns of this version. Raises AccessDenied if the user may not."""
    on_cluster = f" ON CLUSTER {quote(cluster)}" if cluster else ""
    try:
        execute(table.client, [render("ledger_upgrade", table=table.qualified, on_cluster=on_cluster)])
    except AccessDenied as error:
        raise AccessDenied(
            f"the ledger {table.qualified} was made by an earlier version and cannot be upgraded: {error}",
            code=error.code,
            hint="Run `ch_sink init CONFIG --apply` as a user that may ALTER this table.",
        ) from None
    except ClickHouseError:
        # Another job may have added them at the same moment.
        if not form_of(table).is_current:
            raise


def last_claim(table: StateTable, stream: str) -> Claim | None:
    """The newest claim that a job of an earlier version wrote, unless the stream was converted after it."""
    found = table.rows(
        "SELECT details FROM $table FINAL WHERE stream = {stream:String} AND entry = 'claim' AND details != '' "
        "ORDER BY start_offset DESC LIMIT 1",
        stream=stream,
    )
    claim = msgspec.json.decode(found[0]["details"], type=Claim) if found else None
    return None if claim is not None and claim.run_id == _DONE else claim


def convert(table: StateTable, stream: str, last: Claim, owner: Claim) -> None:
    """Write what the earlier version recorded for this stream as entries of this version. Raises ClickHouseError.

    A job of the earlier version that still runs loses the stream first, so that it adds no entry after the conversion.

    Args:
        last: the newest claim of the earlier version.
        owner: the claim of this job.
    """
    number = max(last.number + 1, owner.number)
    _displace(table, stream, Claim(number, _UNDER_WAY, owner.host, owner.pid, ""), 0)
    rows = [row(stream, entry, written=written, run_id=run_id) for entry, written, run_id in _entries(table, stream)]
    table.insert(pa.Table.from_pylist(rows, schema=SCHEMA))
    _displace(table, stream, Claim(number, _DONE, owner.host, owner.pid, ""), 1)
    written = counted(len(rows), "entry", "entries")
    log.warning("stream %r: upgraded %s of an earlier version in %s", stream, written, table.qualified)


def _displace(table: StateTable, stream: str, claim: Claim, written: int) -> None:
    """A claim in the form of the earlier version, for which a job of that version looks."""
    columns = {
        "stream": stream,
        "entry": "claim",
        "start_offset": claim.number,
        "end_offset": claim.number,
        "batch": claim.number,
        "written": written,
        "run_id": claim.run_id,
        "details": msgspec.json.encode(claim).decode(),
    }
    schema = pa.schema([*(SCHEMA.field(name) for name in columns if name != "details"), ("details", pa.string())])
    table.insert(pa.Table.from_pylist([columns], schema=schema))


def _entries(table: StateTable, stream: str) -> Iterator[tuple[Entry, int, str]]:
    """The entries, each with its time and run."""
    columns: tuple[ChangedColumn, ...] = ()
    mine = "stream = {stream:String}"
    for r in table.rows(
        f"SELECT topic_id AS kind, details, written, run_id FROM $table FINAL WHERE {mine} AND entry = 'note' "
        "ORDER BY written",
        stream=stream,
    ):
        if r["kind"] == "columns":
            # The matching finish, which follows, has no columns.
            columns = tuple(ChangedColumn(*text.split(" ", 1)) for text in r["details"].split("; ") if " " in text)
            continue
        entry = _fact(r["kind"], r["details"], columns)
        if entry is not None:
            yield entry, r["written"], r["run_id"]
        if isinstance(entry, SchemaChangeFinished):
            columns = ()
    for r in table.rows(
        f"SELECT topic_id, partition, start_offset, written FROM $table FINAL WHERE {mine} AND entry = 'cut' "
        "AND offset = 0",
        stream=stream,
    ):
        yield ChunkCut(r["topic_id"], r["partition"], r["start_offset"]), r["written"], ""


def _fact(kind: str, text: str, columns: tuple[ChangedColumn, ...]) -> Entry | None:
    match kind:
        case "floor":
            epoch, commit, inner = (int(part) for part in json.loads(text))
            return TruncateFloor(epoch, commit, inner)
        case "topic":
            return msgspec.json.decode(text, type=TopicFacts)
        case "altering" if text:
            return SchemaChangeBegun((), tuple(json.loads(text)))
        case "altering":
            return SchemaChangeFinished(columns)
        case "step":
            partition, _, step = text.partition(" ")
            seen = ast.literal_eval(step)
            return BackwardStepSeen(
                "",
                int(partition),
                seen["offset"],
                seen["kind"],
                seen["source"],
                int(seen["commit"]),
                int(seen["highest"]),
            )
        case _:
            return None
