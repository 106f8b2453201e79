"""The states of streams, in the ledger's table.

They lie together at the start of the table's order: ``stream`` is empty, and ``topic_id`` holds the stream's name. So
one short read gives those of all streams, however long the ledger is. The fields are JSON in the column ``state``,
which is not part of the sorting key: the engine keeps the newest entry of a kind, and their number does not grow.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from ch_sink.clickhouse import ledger_upgrade as earlier
from ch_sink.clickhouse.client import Client
from ch_sink.clickhouse.state_table import StateTable
from ch_sink.ports.stream_states import Alive, Compared, Condition, RecordedState, Request

__all__ = ["ClickHouseStreamStates"]

E = TypeVar("E", Request, Condition, Alive, Compared)

_READ = """\
SELECT
    topic_id AS name,
    entry,
    argMax(state, written) AS newest,
    max(written) AS at,
    (toUnixTimestamp64Nano(now64(9)) - at) / 1e9 AS quiet
FROM $table
WHERE stream = '' AND entry IN ('request', 'condition', 'alive', 'compared') AND topic_id IN {streams:Array(String)}
GROUP BY topic_id, entry"""

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
         WHERE stream = '' AND entry IN ('request', 'condition', 'alive', 'compared')))
FROM (SELECT arrayJoin(arrayZip({streams:Array(String)}, {states:Array(String)})) AS stated)"""


class ClickHouseStreamStates:
    """See the protocol `StreamStates`."""

    def __init__(self, client: Client, database: str, table: str, cluster: str | None = None) -> None:
        """``table``: the ledger's; ``cluster``: where it is altered if an earlier version created it."""
        self._table, self._cluster = StateTable(client, database, table), cluster
        self._is_current = False

    def read(self, streams: Sequence[str]) -> dict[str, RecordedState]:
        found: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in streams}
        if streams and self._has_states():
            for r in self._table.rows(_READ, streams=list(streams)):
                found[r["name"]][r["entry"]] = r
        return {name: _recorded(entries) for name, entries in found.items()}

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
        if not self._has_states():
            earlier.add_columns(self._table, self._cluster)
        [kind] = {entry.kind for entry in entries.values()}
        states = [msgspec.json.encode(entry).decode() for entry in entries.values()]
        self._table.select_into(_WRITE, entry=kind, streams=list(entries), states=states)

    def _has_states(self) -> bool:
        """Whether the table exists in the form of this version."""
        if not self._is_current:
            columns = self._table.columns()
            self._is_current = "claim_number" in columns
        return self._is_current


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
