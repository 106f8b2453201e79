"""What a target must hold once everything is applied, by kind of engine, and how to compare."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.model.connectors import DEFERS
from tests.model.events import PLACEHOLDER
from tests.model.history import History
from tests.model.shapes import Key, Row, TableShape


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One change of the source, counted once: what an append table keeps.

    Images are the source's own: whole, without fillers and placeholders, also where the event lacks them.
    """

    op: str
    key: Key | None
    before: Row | None
    after: Row | None
    partition: int
    offset: int
    """Where it was delivered first."""


def change_log(history: History) -> list[LogEntry]:
    """Every distinct change event in the order of the source; re-delivered ones once."""
    first = {id(d.event): d for d in reversed(history.deliveries)}
    # A killed connector loses what was in flight, in each partition its own, but its last run sends on in order.
    last = {id(d.event): place for place, d in enumerate(history.deliveries)}
    kept = [d for d in first.values() if d.event.kind == "change" and not d.event.repeats]
    kept.sort(key=lambda d: last[id(d.event)])
    return [
        LogEntry(d.event.op, d.event.key, d.event.real_before, d.event.real_after, d.partition, d.offset) for d in kept
    ]


def current_rows(history: History) -> Counter[Key]:
    """The rows of every current-state reader, as a multiset of value tuples in column order: the source's."""
    return Counter(history.table.canonical(row) for row in history.truth)


def folded_log(history: History) -> Counter[Key]:
    """The same from the log, each row as often as ``sum(sign)`` says: only for tables without a key."""
    rows: Counter[Key] = Counter()
    for entry in change_log(history):
        if entry.op == "t":
            rows.clear()
        if entry.before is not None:
            rows[history.table.canonical(entry.before)] -= 1
        if entry.after is not None:
            rows[history.table.canonical(entry.after)] += 1
    return Counter({row: count for row, count in rows.items() if count})


def difference(history: History, actual: Iterable[Mapping[str, Any]]) -> str:
    """Rows missing from and too many in ``actual`` (as often as they should occur), or "" when it is equal."""
    have = Counter(history.table.canonical(dict(row)) for row in actual)
    want = current_rows(history)
    lines = [f"missing {count}x {row}" for row, count in (want - have).items()]
    lines += [f"too many {count}x {row}" for row, count in (have - want).items()]
    return "\n".join(lines)


def sign_faults(
    table: TableShape,
    rows: Sequence[Mapping[str, Any]],
    sign: str,
    truth: Sequence[Row] | None = None,
) -> list[str]:
    """What is wrong with the raw rows of a collapsing table (no FINAL), before or after any merges.

    ``rows`` hold all columns of the table. At every moment after a batch each key's signs sum to 0 or 1, and each
    −1 repeats a stored row with all its columns (version included), so no row as a whole sums below 0. With
    ``truth``: the rows whose signs sum to 1 are the source's, and so are ``sum(x * sign)`` of all numbers.
    """
    faults: list[str] = []
    by_key: dict[Key, int] = defaultdict(int)
    by_row: dict[tuple[tuple[str, Any], ...], int] = defaultdict(int)
    for row in rows:
        if row[sign] not in (1, -1):
            faults.append(f"sign {row[sign]!r} in {row}")
        by_key[table.key_of(dict(row))] += row[sign]
        by_row[tuple((name, value) for name, value in row.items() if name != sign)] += row[sign]
    faults += [f"key {key}: signs sum to {total}" for key, total in by_key.items() if table.key and total not in (0, 1)]
    faults += [f"signs of {dict(row)} sum to {total}" for row, total in by_row.items() if total < 0]
    if table.key:
        faults += [f"{dict(row)} is there {total} times" for row, total in by_row.items() if total > 1]
    if truth is None:
        return faults
    want = Counter(table.canonical(row) for row in truth)
    have: Counter[Key] = Counter()
    for pairs, total in by_row.items():
        have[table.canonical(dict(pairs))] += total
    faults += [f"missing {count}x {row}" for row, count in (want - have).items()]
    faults += [f"too many {count}x {row}" for row, count in (have - want).items()]
    for column in table.columns:
        if column.connect != "string" and column.semantic is None:
            should = sum(int(str(row[column.name] or 0)) for row in truth)
            actual_sum = sum((row[column.name] or 0) * row[sign] for row in rows)
            if should != actual_sum:
                faults.append(f"sum({column.name} * sign) is {actual_sum}, the source has {should}")
    return faults


def replay(history: History) -> Counter[Key]:
    """The table of a consumer that sees all partitions in the order of sending, from the records' bytes alone.

    It knows nothing of commit order, epochs or chunks. Of a change that was sent several times it takes the last:
    a killed connector may have lost records of one partition and not of another, but its last run is whole. It keeps
    the owners of a key as a queue (two keys exchanged at once have two owners for a moment), and takes values it was
    not sent from the current row, for a moved row from its old key at the delete half.
    """
    return _Replay(history).run()


class _Replay:
    def __init__(self, history: History) -> None:
        self.history, self.table = history, history.table
        self.rows: dict[Key, list[Row]] = {}
        self.bag: Counter[Key] = Counter()
        self.moved: dict[tuple[str, bytes], Row] = {}

    def run(self) -> Counter[Key]:
        places = {partition: iter(records) for partition, records in self.history.records.items()}
        sent: list[tuple[bytes | None, dict[str, Any], dict[str, bytes | None]]] = []
        for delivery in self.history.deliveries:
            record = next(places[delivery.partition])
            if record.offset != delivery.offset:
                raise AssertionError(f"delivery {delivery} is not record {record}")
            event = json.loads(record.value or b"{}")
            event = event.get("payload", event)
            if "op" in event:
                sent.append((record.key, event, dict(record.headers)))
        last = {self.identity(key, event): place for place, (key, event, _) in enumerate(sent)}
        reach = -1
        for place, (key, event, headers) in enumerate(sent):
            # A row of an incremental snapshot states nothing new; one before which changes were sent that come again
            # after it would come too early.
            if event["op"] == "r":
                if event["source"]["snapshot"] != "incremental" or place > reach:
                    self.apply(key, event, headers)
                continue
            reach = max(reach, last[self.identity(key, event)])
            if last[self.identity(key, event)] == place:
                self.apply(key, event, headers)
        if not self.table.key:
            return Counter({row: count for row, count in self.bag.items() if count})
        return Counter(self.table.canonical(row) for owners in self.rows.values() for row in owners)

    @staticmethod
    def identity(key_bytes: bytes | None, event: dict[str, Any]) -> tuple[Any, ...]:
        return key_bytes, event["op"], json.dumps(event["source"])

    def apply(self, key_bytes: bytes | None, event: dict[str, Any], headers: dict[str, bytes | None]) -> None:
        if event["op"] == "t":
            self.rows.clear()
            self.bag.clear()
        elif not self.table.key:
            for image, sign in ((event["before"], -1), (event["after"], 1)):
                if image is not None:
                    self.bag[self.table.canonical(self.row(image))] += sign
        else:
            self.keyed(json.loads(key_bytes or b"{}"), event, headers)

    def keyed(self, document: dict[str, Any], event: dict[str, Any], headers: dict[str, bytes | None]) -> None:
        document = document.get("payload", document)
        key = tuple(self.table.column(name).decode(document[name]) for name in self.table.key)
        owners = self.rows.setdefault(key, [])
        position = json.dumps(event["source"])
        old, new = headers.get("__debezium.oldkey"), headers.get("__debezium.newkey")
        if event["op"] == "d":
            gone = owners.pop(0) if owners else None
            if new is not None and gone is not None:
                self.moved[position, new] = gone
            return
        after = self.row(event["after"])
        known: Row | None = owners[-1] if owners else None
        if old is not None:
            # The key's own bytes and the header's differ, so the hand-over is found by the position alone.
            known = next((row for (place, _), row in self.moved.items() if place == position), None)
        for name, value in after.items():
            if value == PLACEHOLDER:
                if known is None:
                    raise AssertionError(f"no value for {name} of {key}")
                after[name] = known[name]
        if event["op"] == "c" and self.history.connector in DEFERS:
            owners.append(after)
        else:
            owners[:] = [after]

    def row(self, image: dict[str, Any]) -> Row:
        return {column.name: column.decode(image[column.name]) for column in self.table.columns}
