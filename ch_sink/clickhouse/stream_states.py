"""The states of streams, in the ledger's table.

They lie together at the start of the table's order: ``stream`` is empty, and ``topic_id`` holds the stream's name. So
one short read gives those of all streams, however long the ledger is. The fields are JSON in the column ``state``,
which is not part of the sorting key: the engine keeps the newest entry of a kind, and their number does not grow.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from ch_sink.clickhouse.arrow_io import Keys
from ch_sink.clickhouse.client import Client
from ch_sink.clickhouse.state_table import StateTable
from ch_sink.ports.ledger import Alive, Compared, Condition, RecordedState, Request

E = TypeVar("E", Request, Condition, Alive, Compared)

# IN, because 26.1 uses no key for `stream = ''`: it makes empty(stream) of it.
_READ = """\
SELECT
    topic_id AS name,
    entry,
    argMax(state, written) AS newest,
    max(written) AS at,
    (toUnixTimestamp64Nano(now64(9)) - at) / 1e9 AS quiet
FROM $table
WHERE stream IN ('') AND entry IN ('request', 'condition', 'alive', 'compared') AND topic_id IN {streams:Array(String)}
GROUP BY topic_id, entry"""
_READ_ALL = _READ.replace(" AND topic_id IN {streams:Array(String)}", "")
_FEW = 100
"""Streams up to which a query names them: names travel in the URL, of which servers and proxies take only so much."""

# Merges drop entries that have been replaced; that makes another mark, and costs no more than a look.
_MARK = """\
SELECT count() AS n, groupBitXor(cityHash64(entry, topic_id, written)) AS entries
FROM $table
WHERE stream IN ('') AND entry IN ('request', 'compared')"""

# The server's clock; after a step back it continues just above the newest entry.
_WRITE = """\
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


class ClickHouseStreamStates:
    """See the protocol `StreamStates`."""

    def __init__(self, client: Client, database: str, table: str) -> None:
        """``table``: the ledger's."""
        self._table = StateTable(client, database, table)
        self._exists = False

    def read(self, streams: Sequence[str]) -> dict[str, RecordedState]:
        found: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in streams}
        if streams and self._has_states():
            few = len(streams) <= _FEW
            for r in self._table.rows(_READ, streams=list(streams)) if few else self._table.rows(_READ_ALL):
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
        self._table.select_into(_WRITE, given, entry=kind)

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
