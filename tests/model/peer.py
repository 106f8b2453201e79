"""A second consumer: any cut, any interleaving of the partitions, by commit positions, epochs and hand-overs.

It follows the rules, not the product's code: one record at a time, dictionaries, no batches. If it
cannot reach the truth, the records do not decide it by these rules: so it distinguishes a fault of the product from a
history that is beyond the rules. Truncates are not among them.
"""

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.model.connectors import DEFERS
from tests.model.delivery import KafkaRecord
from tests.model.events import PLACEHOLDER
from tests.model.history import History
from tests.model.plans import Batch
from tests.model.shapes import Key, Row

Position = tuple[int, ...]


@dataclass(slots=True)
class _Partition:
    epoch: int = 0
    highest: Position = ()
    seen: set[tuple[Any, ...]] = field(default_factory=set)


@dataclass(slots=True)
class _Change:
    key: Key
    op: str
    image: Row | None
    """The row after the change; the whole row before it for a delete, None if there is none to trust."""
    position: tuple[str, ...]
    other: Key | None
    """The old key of a create half, the new one of a delete half."""


class Peer:
    """Feed it batches, then ask for ``table()``."""

    def __init__(self, history: History) -> None:
        self.history, self.shape = history, history.table
        self.counts: Counter[str] = Counter()
        self.owners: dict[Key, list[Row]] = {}
        self.bag: Counter[Key] = Counter()
        self.handed: dict[tuple[tuple[str, ...], Key], Row] = {}
        self.waiting: dict[Key, list[_Change]] = {}
        self.ready: list[Key] = []
        """Keys for which a value was handed over."""
        self.partitions = {partition: _Partition() for partition in history.records}
        self._headers = self._known_keys()

    def run(self, plan: list[Batch]) -> None:
        for batch in plan:
            for chunk in batch.chunks:
                for record in self.history.records[chunk.partition]:
                    if chunk.start <= record.offset < chunk.end:
                        self.take(self.partitions[chunk.partition], record)

    def table(self) -> Counter[Key]:
        if not self.shape.key:
            return Counter({row: count for row, count in self.bag.items() if count})
        return Counter(self.shape.canonical(row) for owners in self.owners.values() for row in owners)

    def take(self, partition: _Partition, record: KafkaRecord) -> None:
        event = json.loads(record.value or b"{}")
        event = event.get("payload", event)
        if "op" not in event:
            return
        source = event["source"]
        commit, known = self.commit(source, partition)
        identity = (record.key, event["op"], json.dumps(source | {"snapshot": ""}))
        again = identity in partition.seen
        partition.seen.add(identity)
        if commit < partition.highest:
            if again:
                self.counts["re-delivered"] += 1
                return
            partition.epoch += 1
            partition.highest = commit
            self.counts["regress"] += 1
        elif again and event["op"] != "r" and (not known or self.repeats_at(commit, partition, source)):
            self.counts["re-delivered at the highest" if known else "re-delivered without a commit position"] += 1
            return
        partition.highest = max(partition.highest, commit)
        if not self.shape.key:
            for image, sign in ((event["before"], -1), (event["after"], 1)):
                if image is not None:
                    self.bag[self.shape.canonical(self.row(image))] += sign
            return
        self.enqueue(self.change(record, event))

    def repeats_at(self, commit: Position, partition: _Partition, source: dict[str, Any]) -> bool:
        """A change of the highest transaction that comes again does not count, since a value that it takes from the
        stored row would be a later one. MySQL's have whole images, so with a key they may: in a compressed transaction
        two changes can look alike.
        """
        return commit == partition.highest and not ("file" in source and self.shape.key)

    def commit(self, source: dict[str, Any], partition: _Partition) -> tuple[Position, bool]:
        """The commit position, and whether the event states it."""
        if "file" in source:
            return (int(source["file"].rsplit(".", 1)[1]), int(source["pos"])), True
        if "commit_lsn" in source:
            return (int(source["commit_lsn"].replace(":", ""), 16),), True
        if "commit_scn" in source:
            stated = source["commit_scn"] or int((source["lcr_position"] or "0")[:16], 16)
            return (int(stated),) if stated else max(partition.highest, (int(source["scn"]),)), bool(stated)
        first = json.loads(source["sequence"])[0]
        if first is None:
            return max(partition.highest, (int(source["lsn"] or 0),)), False
        return (int(first),), True

    def change(self, record: KafkaRecord, event: dict[str, Any]) -> _Change:
        headers = dict(record.headers)
        other = headers.get("__debezium.oldkey") or headers.get("__debezium.newkey")
        document = json.loads(record.key or b"{}")
        document = document.get("payload", document)
        key = self.decode_key(document)
        image = self.row(event["after"]) if event["after"] is not None else None
        if event["op"] == "d" and self.history.whole_before:
            image = self.row(event["before"])
        place = (
            "file",
            "pos",
            "row",
            "lsn",
            "sequence",
            "change_lsn",
            "commit_lsn",
            "scn",
            "rs_id",
            "ssn",
            "lcr_position",
        )
        position = tuple(str(event["source"].get(name)) for name in place)
        return _Change(key, event["op"], image, position, None if other is None else self._headers[other])

    def enqueue(self, change: _Change) -> None:
        queue = self.waiting.get(change.key)
        if queue is not None:
            queue.append(change)
        elif not self.apply(change):
            self.waiting[change.key] = [change]
            self.counts["waited"] += 1
        while self.ready:
            key = self.ready.pop()
            queue = self.waiting.pop(key, [])
            while queue and self.apply(queue[0]):
                del queue[0]
            if queue:
                self.waiting[key] = queue

    def apply(self, change: _Change) -> bool:
        """Carry it out; False where the value it needs was not handed over yet."""
        owners = self.owners.setdefault(change.key, [])
        if change.op == "d":
            self.delete(change, owners)
            return True
        after = dict(change.image or {})
        gaps = [name for name, value in after.items() if value == PLACEHOLDER]
        if gaps:
            moved = change.op == "c" and change.other is not None
            known = self.handed.get((change.position, change.other or ())) if moved else None
            if moved and known is None:
                return False
            if known is None:
                if not owners:
                    self.counts["unresolved"] += 1
                    return True
                known = owners[-1]
            after |= {name: known[name] for name in gaps}
        if change.op == "c" and change.other is not None and owners and self.history.connector in DEFERS:
            self.counts["two owners"] += 1
            owners.append(after)
        else:
            owners[:] = [after]
        return True

    def delete(self, change: _Change, owners: list[Row]) -> None:
        gone = owners.pop(0) if owners else None
        if gone is None or change.other is None:
            return
        # The first entry stays: a repeated key change must not hand over what lives there by now.
        self.handed.setdefault((change.position, change.key), gone)
        self.ready.append(change.other)

    def row(self, image: dict[str, Any]) -> Row:
        return {column.name: column.decode(image[column.name]) for column in self.shape.columns}

    def decode_key(self, document: dict[str, Any]) -> Key:
        return tuple(self.shape.column(name).decode(document[name]) for name in self.shape.key)

    def _known_keys(self) -> dict[bytes, Key]:
        """Header text → key: the header is not JSON, but its lenient reading is."""
        texts = {
            text
            for records in self.history.records.values()
            for record in records
            for name, text in record.headers
            if text is not None and name.endswith(("newkey", "oldkey"))
        }
        return {text: self.decode_key(json.loads(text, strict=False)) for text in texts}
