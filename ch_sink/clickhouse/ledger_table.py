"""Entries in the ledger's table: of one stream, its writes and reads, owner, facts and tasks; and states of streams.

States lie together at the start of the table's order: ``stream`` is empty, and ``topic_id`` holds the stream's name. So
one short read gives those of all streams, however long the ledger is. The fields are JSON in the column ``state``,
which is not part of the sorting key: the engine keeps the newest entry of a kind, and their number does not grow.
"""

import json
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from ch_sink.clickhouse.arrow_io import Keys
from ch_sink.clickhouse.client import Client, connect
from ch_sink.clickhouse.fence import CLAIM_BITS, ClickHouseFence, GroupFence, rank
from ch_sink.clickhouse.ledger_rows import SCHEMA, Entry, claim_of, fact_of, row
from ch_sink.clickhouse.settings import ClickHouseSettings
from ch_sink.clickhouse.state_table import StateTable
from ch_sink.ports import (
    Claim,
    Command,
    Execution,
    Fact,
    Fence,
    RangeProgress,
    ReleaseGroup,
    RowsEdited,
    Terms,
)
from ch_sink.ports.ledger import Alive, Compared, Condition, RecordedState, Request
from ch_sink.stream.claims import displaced, mine, new_claim, next_execution, retired, superseded

Row = dict[str, Any]
"""An entry as a row of the table."""
F = TypeVar("F", bound=Fact)

MINE = "stream = {stream:String}"
# By claim first, since the clocks of two jobs may differ. One number is compared much faster than a tuple.
ORDER = "bitOr(bitShiftLeft(toUInt128(claim_number), 64), toUInt128(written))"
PARTITION = "topic_id = {topic_id:String} AND partition = {partition:Int32}"

# Served by the primary key (stream, entry): reads the claims of this stream and nothing else.
NEWEST_CLAIM = f"""\
SELECT claim_number, run_id, fact, written FROM $table
WHERE {MINE} AND entry = 'claim'
ORDER BY claim_number DESC, written DESC LIMIT 1"""

_CLAIM_AND_KINDS = f"""\
SELECT *, (SELECT groupUniqArray(entry) FROM $table WHERE stream = {{stream:String}}) AS kinds
FROM ({NEWEST_CLAIM})"""

_FACTS = f"""\
SELECT topic_id, partition, offset, fact FROM $table FINAL
WHERE {MINE} AND entry = {{kind:String}} ORDER BY {ORDER}"""


class LedgerTable:
    """The entries of one stream. Raises ClickHouseError.

    A stream that is opened asks some twenty questions. Of a new stream all answers are empty, and of most others those
    about truncates and summaries. So a claim asks once which kinds of entries there are, and its owner does not ask for
    those that only an owner writes. What it does ask about them, it asks once until it writes.
    """

    def __init__(self, client: Client, database: str, table: str, stream: str) -> None:
        self.stream = stream
        self.table = StateTable(client, database, table)
        self._written = 0
        self._kinds: set[str] | None = None
        """The kinds of the stream's entries, while this ledger owns it."""
        self._answers: dict[tuple[str, str], list[Row]] = {}
        """Question → rows, since this ledger wrote last."""

    def ask(self, sql: str, *kinds: str, **parameters: object) -> list[Row]:
        """Rows of a query. ``kinds``: those of the entries that it reads, if only owners write them."""
        if not kinds or self._kinds is None:
            return self.table.rows(sql, stream=self.stream, **parameters)
        if self._kinds.isdisjoint(kinds):
            return []
        question = sql, repr(parameters)
        if question not in self._answers:
            self._answers[question] = self.table.rows(sql, stream=self.stream, **parameters)
        return self._answers[question]

    def insert(self, entries: Iterable[Entry], batch: int = 0, under: Claim | None = None) -> None:
        """Insert entries as one block, under a claim, or under none for tasks and commands."""
        insert_rows(self.table, self.rows_of(entries, batch, under))

    def rows_of(self, entries: Iterable[Entry], batch: int, under: Claim | None) -> list[Row]:
        """The rows of entries that are about to be inserted."""
        self._answers.clear()
        number, run_id = (under.number, under.run_id) if under is not None else (0, "")
        rows = [
            row(
                self.stream,
                e,
                claim_number=number,
                run_id=run_id,
                batch=batch,
                # The version of an execution's row is its rank, so that the engine keeps the newest one.
                written=rank(e) if isinstance(e, Execution) else self.tick(),
            )
            for e in entries
        ]
        if self._kinds is not None:
            self._kinds |= {r["entry"] for r in rows}
        return rows

    def delete(self, sql: str, **parameters: object) -> None:
        """Run a lightweight DELETE over entries of the stream."""
        self._answers.clear()
        self.table.client.command(
            sql.replace("$table", self.table.qualified),
            {"stream": self.stream, **parameters},
            settings={"lightweight_deletes_sync": 1},
            doing=f"delete folded entries of {self.table.qualified}",
        )

    def tick(self) -> int:
        """The current time, or just after the last entry and the newest claim if the clock is behind them."""
        self._written = max(time.time_ns(), self._written + 1)
        return self._written

    def seen(self, found: Sequence[Row]) -> None:
        """The next entries come after these."""
        self._written = max(self._written, *(int(r["written"]) for r in found), 0)

    def newest_claim(self) -> Claim | None:
        """The newest claim of the stream, released or not."""
        found = self.ask(NEWEST_CLAIM)
        self.seen(found)
        return claim_of(found[0]) if found else None


class OwnedLedger(LedgerTable):
    """The owner of the stream, and the facts that its owner records."""

    _claim: Claim | None = None

    def claim(self, run_id: str, terms: Terms | None = None) -> Claim:
        self._claim = new_claim(self.stream, run_id, self.newest_claim(), terms)
        self.insert([self._claim])
        # Two jobs that claim at the same moment get the same number; the later of the two owns the stream.
        found = self.ask(_CLAIM_AND_KINDS)
        self.seen(found)
        self.expect_mine(claim_of(found[0]) if found else None)
        self._kinds = {str(kind) for kind in found[0]["kinds"]}
        return self._claim

    def release(self) -> None:
        claim, self._claim, self._kinds = self._claim, None, None
        if claim is None:
            return
        given_back = retired(self.stream, claim)
        if mine(claim, self.newest_claim()):
            self.insert([given_back], under=claim)

    def restate(self, terms: Terms) -> None:
        self.check_claim()
        assert self._claim is not None
        self._claim = replace(self._claim, terms=terms)
        self.insert([self._claim], under=self._claim)

    def last_claim(self) -> Claim | None:
        return self.newest_claim()

    def owner(self) -> Claim | None:
        newest = self.newest_claim()
        return None if newest is None or newest.released else newest

    def check_claim(self) -> None:
        self.expect_mine(self.newest_claim())

    def expect_mine(self, newest: Claim | None) -> None:
        """Raises LedgerConflict if the stream's newest claim is another one."""
        if not mine(self._claim, newest):
            raise displaced(self.stream, newest)

    def record(self, *facts: Fact) -> None:
        self.check_claim()
        self.insert(facts, under=self._claim)

    def note(self, *facts: RowsEdited | Command) -> None:
        self.insert(facts)

    def facts(self, kind: type[F]) -> list[F]:
        by_owners = () if kind in (RowsEdited, Command) else (kind.kind,)
        found = [fact_of(r, kind) for r in self.ask(_FACTS, *by_owners, kind=kind.kind)]
        return list(dict.fromkeys(reversed(found)))[::-1]


def insert_rows(table: StateTable, rows: Sequence[Row]) -> None:
    """Insert rows of entries as one block. Raises ClickHouseError."""
    if rows:
        first = rows[0]
        token = f"{first['stream']}/{first['entry']}/{first['run_id']}/{first['batch']}/{first['written']}"
        # A fence is asked on whichever replica takes an insert.
        fences = first["entry"] in (Claim.kind, Execution.kind)
        table.insert(pa.Table.from_pylist(list(rows), schema=SCHEMA), token=token, everywhere=fences)


# Served by the primary key. The engine keeps one row for each partition, and `written` is the execution's rank.
_LAST_EXECUTION = f"""\
SELECT written, run_id, state, counts['batch'] AS highest FROM $table
WHERE {MINE} AND entry = 'execution' AND {PARTITION}
ORDER BY written DESC, run_id DESC LIMIT 1"""

# Progress under the claim and batch of the last result of the same range, or under an earlier one, is void; likewise if
# a summary of the range was written after its batch began. A batch's number is a time of the owner's clock; the clocks
# of tasks are not looked at.
PROGRESS_OF = f"""\
WITH (SELECT max((claim_number, batch)) FROM $table
    WHERE {MINE} AND entry = 'result' AND {PARTITION} AND start_offset = {{start:Int64}}) AS last,
    (SELECT max((claim_number, written)) FROM $table
    WHERE {MINE} AND entry = 'summary' AND {PARTITION}
        AND start_offset <= {{start:Int64}} AND end_offset > {{start:Int64}}) AS folded
SELECT end_offset, state FROM $table
WHERE {MINE} AND entry = 'progress' AND {PARTITION} AND start_offset = {{start:Int64}}
    AND (claim_number, batch) > greatest(last, folded)
ORDER BY end_offset DESC LIMIT 1"""

# Each group replaces the one before it.
_LAST_RELEASE = f"""\
SELECT offsets, counts['given_up'] AS given_up, written FROM $table
WHERE {MINE} AND entry = 'release' AND {PARTITION} ORDER BY written DESC LIMIT 1"""


class ClickHouseTaskLedger(LedgerTable):
    """The TaskLedger of one stream. See the protocol; raises ClickHouseError too."""

    def begin(self, topic_id: str, partition: int, claim: Claim | None, work: str) -> Fence:
        number, before = claim.number if claim is not None else 0, self._last_execution(topic_id, partition)
        repeats = before is not None and before.work == work
        while before is None or before.claim <= number:
            mine = Execution(topic_id, partition, number, 0, uuid.uuid4().hex[:12], work)
            mine = next_execution(self.stream, before, mine)
            self.insert([mine])
            fence = ClickHouseFence(self.table, self.stream, mine, claim, repeats, self.newest_claim)
            if fence.holds():
                return fence
            fence.check_claim()
            # Two executions drew the same number at the same moment, and the other one is the newest.
            before = self._last_execution(topic_id, partition)
            if before is not None and before.id == mine.id:
                raise superseded(self.stream, partition)  # a later batch has begun
        raise displaced(self.stream, self.newest_claim())

    def together(self, topic_id: str, partitions: Sequence[int], claim: Claim | None, batch: int) -> Fence:
        return GroupFence(self.table, self.stream, topic_id, sorted(partitions), claim, batch, self.newest_claim)

    def _last_execution(self, topic_id: str, partition: int) -> Execution | None:
        found = self.ask(_LAST_EXECUTION, topic_id=topic_id, partition=partition)
        if not found:
            return None
        claim, number = divmod(int(found[0]["written"]), 1 << CLAIM_BITS)
        run_id, work, highest = (found[0][name] for name in ("run_id", "state", "highest"))
        return Execution(topic_id, partition, claim, number, str(run_id), str(work), int(highest))

    def put_progress(self, progress: RangeProgress) -> None:
        self.insert([progress], progress.start)

    def progress_of(self, topic_id: str, partition: int, start: int) -> RangeProgress | None:
        found = self.ask(PROGRESS_OF, topic_id=topic_id, partition=partition, start=start)
        return RangeProgress(topic_id, partition, start, found[0]["end_offset"], found[0]["state"]) if found else None

    def put_release(self, group: ReleaseGroup) -> None:
        self.insert([group])

    def last_release(self, topic_id: str, partition: int) -> ReleaseGroup | None:
        found = self.ask(_LAST_RELEASE, topic_id=topic_id, partition=partition)
        if not found:
            return None
        self.seen(found)
        return ReleaseGroup(topic_id, partition, tuple(found[0]["offsets"]), bool(found[0]["given_up"]))


E = TypeVar("E", Request, Condition, Alive, Compared)

# IN, because 26.1 uses no key for `stream = ''`: it makes empty(stream) of it.
_STATES = """\
SELECT
    topic_id AS name,
    entry,
    argMax(state, written) AS newest,
    max(written) AS at,
    (toUnixTimestamp64Nano(now64(9)) - at) / 1e9 AS quiet
FROM $table
WHERE stream IN ('') AND entry IN ('request', 'condition', 'alive', 'compared') AND topic_id IN {streams:Array(String)}
GROUP BY topic_id, entry"""
_ALL_STATES = _STATES.replace(" AND topic_id IN {streams:Array(String)}", "")
_FEW = 100
"""Streams up to which a query names them: names travel in the URL, of which servers and proxies take only so much."""

# Merges drop entries that have been replaced; that makes another mark, and costs no more than a look.
_MARK = """\
SELECT count() AS n, groupBitXor(cityHash64(entry, topic_id, written)) AS entries
FROM $table
WHERE stream IN ('') AND entry IN ('request', 'compared')"""

# The server's clock; after a step back it continues just above the newest entry.
_WRITE_STATES = """\
INSERT INTO $table (entry, topic_id, state, written)
SELECT
    {entry:String},
    stated.1,
    stated.2,
    greatest(
        toUInt64(toUnixTimestamp64Nano(now64(9))),
        (SELECT max(written) + 1 FROM $table
         WHERE stream IN ('') AND entry IN ('request', 'condition', 'alive', 'compared')))
FROM (SELECT (toString(name), toString(state)) AS stated FROM given)"""


@dataclass(unsafe_hash=True)
class ClickHouseStreamStates:
    """See the protocol `StreamStates`. Connects when it is asked, so that a job can wait for an unavailable server."""

    settings: ClickHouseSettings
    database: str
    table: str
    """The ledger's."""
    _exists: bool = field(default=False, init=False, compare=False)

    @cached_property
    def _table(self) -> StateTable:
        return StateTable(connect(self.settings), self.database, self.table)

    def read(self, streams: Sequence[str]) -> dict[str, RecordedState]:
        found: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in streams}
        if streams and self._has_states():
            few = len(streams) <= _FEW
            for r in self._table.rows(_STATES, streams=list(streams)) if few else self._table.rows(_ALL_STATES):
                if r["name"] in found:
                    found[r["name"]][r["entry"]] = r
        return {name: _recorded(entries) for name, entries in found.items()}

    def mark(self) -> object:
        if not self._has_states():
            return None
        [found] = self._table.rows(_MARK)
        return found["n"], found["entries"]

    def ask(self, requests: Mapping[str, Request]) -> None:
        self._write(requests)

    def note(self, conditions: Mapping[str, Condition]) -> None:
        self._write(conditions)

    def beat(self, beats: Mapping[str, Alive]) -> None:
        self._write(beats)

    def compare(self, comparisons: Mapping[str, Compared]) -> None:
        self._write(comparisons)

    def _write(self, entries: Mapping[str, E]) -> None:
        if not entries:
            return
        [kind] = {entry.kind for entry in entries.values()}
        states = [msgspec.json.encode(entry) for entry in entries.values()]
        rows = pa.table(
            {"name": pa.array(map(str.encode, entries), pa.binary()), "state": pa.array(states, pa.binary())}
        )
        given = Keys("given", rows, [("name", "String"), ("state", "String")])
        self._table.select_into(_WRITE_STATES, given, entry=kind)

    def _has_states(self) -> bool:
        """Whether the table exists."""
        self._exists = self._exists or bool(self._table.columns())
        return self._exists


def _recorded(entries: Mapping[str, Mapping[str, Any]]) -> RecordedState:
    request, condition, alive = (entries.get(kind.kind) for kind in (Request, Condition, Alive))
    return RecordedState(
        request=_entry(request, Request),
        condition=_entry(condition, Condition),
        asked_after=request is not None and (condition is None or request["at"] > condition["at"]),
        alive=_entry(alive, Alive),
        quiet=float(alive["quiet"]) if alive is not None else 0.0,
        compared=_entry(entries.get(Compared.kind), Compared),
    )


def _entry(r: Mapping[str, Any] | None, kind: type[E]) -> E | None:
    return msgspec.convert(json.loads(r["newest"]), kind) if r is not None else None
