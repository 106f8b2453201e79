"""The ledger in a ClickHouse table (``sql/ledger.sql``)."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from ch_sink.clickhouse import ledger_entries as entries
from ch_sink.clickhouse.client import Client
from ch_sink.clickhouse.ledger_entries import MINE
from ch_sink.clickhouse.state_table import StateTable
from ch_sink.ports import PartitionTotals, RangeIntent, RangeResult
from ch_sink.stream.claims import Claim, displaced, mine, new_claim, retired

__all__ = ["ClickHouseLedger"]


class ClickHouseLedger:
    """The Ledger of one stream. See the protocol; raises ClickHouseError too."""

    def __init__(self, client: Client, database: str, table: str, stream: str) -> None:
        self.stream = stream
        self._table = StateTable(client, database, table)
        self._claim: Claim | None = None
        self._written = 0
        self._batch = 0
        self._reached: dict[tuple[str, int], int] | None = None

    def claim(self, run_id: str) -> None:
        self._claim = new_claim(self.stream, run_id, self._newest())
        self._put_claim(self._claim)
        # Two jobs that claimed at the same moment have the same number: the engine keeps one of the two entries.
        self.check_claim()

    def release(self) -> None:
        claim, self._claim = self._claim, None
        if claim is None:
            return
        given_back = retired(self.stream, claim)
        if mine(claim, self._newest()):
            self._put_claim(given_back)

    def check_claim(self) -> None:
        newest = self._newest()
        if not mine(self._claim, newest):
            raise displaced(self.stream, newest)

    def intents(self, ranges: Sequence[RangeIntent]) -> list[RangeIntent]:
        self.check_claim()
        numbered = [replace(r, attempt=self._overlaps(r)) for r in ranges]
        batch = self._batch = self._tick()
        self._insert([self._row("intent", r, batch) for r in numbered], batch)
        reached = self._intended()
        for r in numbered:
            place = (r.topic_id, r.partition)
            reached[place] = max(reached.get(place, 0), r.end)
        return numbered

    def results(self, results: Sequence[RangeResult]) -> None:
        self.check_claim()
        self._insert([self._row("result", r, self._batch) for r in results], self._batch)

    def state_at(self, topic_id: str, partition: int, offset: int) -> str | None:
        found = self._rows(
            f"SELECT state FROM $table WHERE {MINE} AND entry = 'result' AND topic_id = {{topic_id:String}} "
            "AND partition = {partition:Int32} AND end_offset = {offset:Int64} AND end_offset > start_offset "
            "ORDER BY written DESC LIMIT 1",
            topic_id=topic_id,
            partition=partition,
            offset=offset,
        )
        return str(found[0]["state"]) if found else None

    def progress(self, topic_id: str) -> dict[int, int]:
        return {int(r["partition"]): int(r["next_offset"]) for r in self._rows(entries.PROGRESS, topic_id=topic_id)}

    def topic_ids(self) -> list[str]:
        found = self._rows(
            f"SELECT topic_id FROM $table WHERE {MINE} AND entry IN ('intent', 'result') "
            "GROUP BY topic_id ORDER BY max(written) DESC"
        )
        return [str(r["topic_id"]) for r in found]

    def last_intents(self) -> list[RangeIntent]:
        found = self._rows(
            "SELECT topic, topic_id, partition, start_offset, end_offset, chunk_offsets, chunk_bytes, details "
            f"FROM $table FINAL WHERE {MINE} AND entry = 'intent' AND batch = "
            f"(SELECT max(batch) FROM $table WHERE {MINE} AND entry = 'intent') "
            "ORDER BY topic_id, partition, start_offset"
        )
        return [entries.intent_of(r) for r in found]

    def history(self, limit: int) -> list[RangeResult]:
        found = self._rows(
            f"SELECT {entries.RESULT} FROM $table FINAL WHERE {MINE} AND entry = 'result' "
            "ORDER BY written DESC, topic_id, partition LIMIT {limit:UInt64}",
            limit=limit,
        )
        return [entries.result_of(r) for r in found]

    def totals(self) -> list[PartitionTotals]:
        return [entries.totals_of(r) for r in self._rows(entries.TOTALS)]

    def put_progress(self, topic_id: str, partition: int, start: int, end: int, state: str) -> None:
        """A task's word that [start, end) of its range is done. It needs no claim: the driver holds it."""
        row = self._row("progress", RangeIntent("", topic_id, partition, start, end), start)
        row["state"] = state
        self._insert([row], start)

    def progress_of(self, topic_id: str, partition: int, start: int) -> tuple[int, str] | None:
        """The furthest word for the range that begins at ``start``, given since that range last had a result."""
        found = self._rows(
            f"SELECT end_offset, state FROM $table WHERE {MINE} AND entry = 'progress' "
            "AND topic_id = {topic_id:String} AND partition = {partition:Int32} AND start_offset = {start:Int64} "
            f"AND written > (SELECT max(written) FROM $table WHERE {MINE} AND entry = 'result' "
            "AND topic_id = {topic_id:String} AND partition = {partition:Int32} AND start_offset = {start:Int64}) "
            "ORDER BY end_offset DESC LIMIT 1",
            topic_id=topic_id,
            partition=partition,
            start=start,
        )
        return (int(found[0]["end_offset"]), str(found[0]["state"])) if found else None

    def put_cut(self, topic_id: str, partition: int, offset: int) -> None:
        """A task's word; like `put_progress` it needs no claim."""
        self._insert([self._row("cut", RangeIntent("", topic_id, partition, offset, offset), 0)], offset)

    def cuts(self, topic_id: str) -> dict[int, list[int]]:
        found = self._rows(
            f"SELECT partition, groupUniqArray(start_offset) AS offsets FROM $table WHERE {MINE} AND entry = 'cut' "
            "AND topic_id = {topic_id:String} GROUP BY partition",
            topic_id=topic_id,
        )
        return {int(r["partition"]): sorted(int(o) for o in r["offsets"]) for r in found}

    def note(self, kind: str, text: str) -> None:
        self.check_claim()
        at = self._tick()
        row = self._row("note", RangeIntent("", kind, 0, at, at), at)
        row["details"] = text
        self._insert([row], at)

    def notes(self, kind: str) -> list[str]:
        found = self._rows(
            f"SELECT details FROM $table FINAL WHERE {MINE} AND entry = 'note' AND topic_id = {{kind:String}} "
            "ORDER BY written",
            kind=kind,
        )
        return [str(r["details"]) for r in found]

    def _rows(self, sql: str, **parameters: object) -> list[dict[str, Any]]:
        return self._table.rows(sql, stream=self.stream, **parameters)

    def _newest(self) -> Claim | None:
        found = self._rows(
            f"SELECT details, (SELECT max(written) FROM $table WHERE {MINE}) AS top FROM $table FINAL "
            f"WHERE {MINE} AND entry = 'claim' ORDER BY start_offset DESC LIMIT 1"
        )
        if not found:
            return None
        self._written = max(self._written, int(found[0]["top"]))
        return Claim.from_json(found[0]["details"])

    def _put_claim(self, claim: Claim) -> None:
        at = self._tick()
        row = self._row("claim", RangeIntent("", "", 0, claim.number, claim.number), claim.number)
        row.update(details=claim.to_json(), run_id=claim.run_id, written=at)
        self._insert([row], at)

    def _overlaps(self, r: RangeIntent) -> int:
        if r.start >= self._intended().get((r.topic_id, r.partition), 0):
            return 0
        found = self._rows(
            f"SELECT uniqExact(batch) AS n FROM $table WHERE {MINE} AND entry = 'intent' "
            "AND topic_id = {topic_id:String} AND partition = {partition:Int32} "
            "AND start_offset < {end:Int64} AND end_offset > {start:Int64}",
            topic_id=r.topic_id,
            partition=r.partition,
            start=r.start,
            end=r.end,
        )
        return int(found[0]["n"])

    def _intended(self) -> dict[tuple[str, int], int]:
        """How far ranges were intended, by topic and partition; asked once, then kept."""
        if self._reached is None:
            found = self._rows(
                "SELECT topic_id, partition, max(end_offset) AS reached FROM $table "
                f"WHERE {MINE} AND entry = 'intent' GROUP BY topic_id, partition"
            )
            self._reached = {(r["topic_id"], r["partition"]): int(r["reached"]) for r in found}
        return self._reached

    def _tick(self) -> int:
        """The order of the next entry: the time, but always later than every entry seen."""
        self._written = max(time.time_ns(), self._written + 1)
        return self._written

    def _row(self, entry: str, r: RangeIntent | RangeResult, batch: int) -> dict[str, Any]:
        run_id = self._claim.run_id if self._claim else ""
        return entries.row(self.stream, entry, r, batch=batch, written=self._tick(), run_id=run_id)

    def _insert(self, rows: list[dict[str, Any]], batch: int) -> None:
        if rows:
            first = rows[0]
            token = f"{self.stream}/{first['entry']}/{first['run_id']}/{batch}/{first['written']}"
            self._table.insert(pa.Table.from_pylist(rows, schema=entries.SCHEMA), token=token)
