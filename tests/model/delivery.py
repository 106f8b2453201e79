"""From events to Kafka records: partitions, offsets, kills of the connector, re-delivered stretches, extras."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.model.choose import Chooser
from tests.model.events import Boundary, Connector, Event
from tests.model.knobs import Knobs
from tests.model.shapes import Key, TableShape
from tests.model.wire import dumps, header_struct, key_schema, partition_of, source_schema, value_schema


@dataclass(frozen=True, slots=True)
class KafkaRecord:
    """One record of a partition; ``timestamp`` in milliseconds since 1970."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: int


@dataclass(frozen=True, slots=True)
class Delivery:
    """Where an event came to lie. ``again``: the very same change is already at an earlier offset or partition."""

    partition: int
    offset: int
    event: Event
    again: bool


@dataclass(slots=True)
class Encoder:
    """Bytes of an event. ``schema``: with the JSON schema envelope. ``streamed_mark``: ``source.snapshot`` of
    streamed events, "false" or null (``replace.null.with.default=false``)."""

    connector: Connector
    topic: str
    schema: bool
    streamed_mark: str | None = "false"
    table: TableShape = field(init=False)
    _key_schema: bytes = field(init=False)
    _value_schema: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.table = self.connector.table
        self._key_schema = dumps(key_schema(self.table, self.topic))
        source = source_schema(self.connector.schema_name, self.connector.own_fields)
        self._value_schema = dumps(value_schema(self.table, self.topic, source))

    def key(self, event: Event) -> bytes | None:
        if event.kind == "heartbeat":
            return dumps(self._wrap({"serverName": self.connector.name}, "io.debezium.connector.common.ServerNameKey"))
        if event.kind in ("begin", "end"):
            name = "io.debezium.connector.common.TransactionMetadataKey"
            return dumps(self._wrap({"id": (event.body or {})["id"]}, name))
        if event.key is None:
            return None
        document = self._named(event.key)
        return self._enveloped(self._key_schema, document)

    def value(self, event: Event, ns: int) -> bytes | None:
        """``ns``: the connector's clock, nanoseconds since 1970."""
        if event.kind == "tombstone":
            return None
        if event.kind == "heartbeat":
            return dumps(self._wrap({"ts_ms": ns // 10**6}, "io.debezium.connector.common.Heartbeat"))
        if event.kind in ("begin", "end"):
            return dumps(self._wrap(event.body or {}, "io.debezium.connector.common.TransactionMetadataValue"))
        source = dict(event.source or {})
        if source["snapshot"] == "false":
            source["snapshot"] = self.streamed_mark
        document: dict[str, Any] = {
            "before": event.before,
            "after": event.after,
            "source": source,
            "transaction": event.transaction,
        }
        document |= {"op": event.op, "ts_ms": ns // 10**6, "ts_us": ns // 1000, "ts_ns": ns}
        return self._enveloped(self._value_schema, document)

    def headers(self, event: Event, run: str) -> list[tuple[str, bytes | None]]:
        if event.kind not in ("change", "tombstone"):
            return []
        out: list[tuple[str, bytes | None]] = []
        if event.half and event.other_key is not None:
            name = "__debezium.newkey" if event.half == "delete" else "__debezium.oldkey"
            out.append((name, header_struct(self._named(event.other_key))))
        context = {"connectorLogicalName": self.connector.name, "taskId": "0"}
        context |= {"connectorName": self.connector.kind, "runId": run}
        return out + [(f"__debezium.context.{name}", text.encode()) for name, text in context.items()]

    def _enveloped(self, schema: bytes, document: dict[str, Any]) -> bytes:
        payload = dumps(document)
        return b'{"schema":' + schema + b',"payload":' + payload + b"}" if self.schema else payload

    def _named(self, key: Key) -> dict[str, Any]:
        return {name: self.table.column(name).encode(value) for name, value in zip(self.table.key, key, strict=True)}

    def _wrap(self, document: dict[str, Any], name: str) -> dict[str, Any]:
        """Heartbeats and transaction records, with a schema of their fields' plain types."""
        if not self.schema:
            return document
        fields = [
            {"type": "int64" if isinstance(value, int) else "string", "optional": True, "field": field_name}
            for field_name, value in document.items()
            if not isinstance(value, list)
        ]
        return {
            "schema": {"type": "struct", "fields": fields, "optional": False, "name": name, "version": 1},
            "payload": document,
        }


class Broker:
    """The partitions of the topic, and the connector's runs that fill them."""

    def __init__(self, choose: Chooser, encoder: Encoder, knobs: Knobs, partitions: int, gaps: bool) -> None:
        self.choose, self.encoder, self.knobs, self.gaps = choose, encoder, knobs, gaps
        self.features: Counter[str] = Counter()
        first = [0, 0, 0, 7]
        if knobs.high_offsets:
            first = [2**31 - 9, 2**31 - 2]
        self.records: dict[int, list[KafkaRecord]] = {partition: [] for partition in range(partitions)}
        self.starts = {partition: choose.choice(first) for partition in self.records}
        self.ends = dict(self.starts)
        self.deliveries: list[Delivery] = []
        self._keyless = choose.integer(0, partitions - 1)
        self._placed: dict[int, int] = {}
        self._seen: set[int] = set()
        self._ns = 0
        self._run = 0

    def partition(self, event: Event) -> int:
        """By the key's hash; truncates go anywhere, sent again to another place only if the knobs say so."""
        key = self.encoder.key(event)
        if key is not None:
            return partition_of(key, len(self.records))
        if id(event) in self._placed:
            return self._placed[id(event)]
        if event.op == "t":
            place = self.choose.integer(0, len(self.records) - 1)
            if not self.knobs.truncates_move:
                self._placed[id(event)] = place
            return place
        return self._keyless

    def write(self, event: Event, place: int) -> None:
        self._ns = max(self._ns + 137_000, event.ms * 10**6 + 12_345_678)
        run = f"01a1fe52-b6a1-7adc-a7f5-{self._run:012x}"
        offset = self.ends[place]
        self.records[place].append(
            KafkaRecord(
                offset,
                self.encoder.key(event),
                self.encoder.value(event, self._ns),
                self.encoder.headers(event, run),
                self._ns // 10**6 + 3,
            )
        )
        self.ends[place] = offset + 1
        if self.gaps and self.choose.chance(8):
            self.ends[place] += self.choose.integer(1, 2)
            self.features["gap"] += 1
        again = id(event) in self._seen
        self._seen.add(id(event))
        self.deliveries.append(Delivery(place, offset, event, again or event.repeats))

    def deliver(
        self, events: list[Event], boundaries: dict[int, Boundary], restarts: int, connector: Connector
    ) -> None:
        """All events, with up to ``restarts`` kills. After a kill the connector begins again at the last flushed
        source offset: a stretch comes a second time, while what was in flight was not written the first time."""
        queue = list(events)
        floor = sum(event.snapshot == "initial" for event in queue)
        for _ in range(restarts):
            if floor >= len(queue):
                break
            kill = self.choose.integer(floor + 1, len(queue))
            barrier = max([floor] + [i for i in range(floor, kill) if queue[i].after_regress])
            starts = [i for i in range(barrier, kill) if i == 0 or queue[i].unit != queue[i - 1].unit]
            if not starts:
                continue
            start = starts[max(0, len(starts) - 1 - self.choose.integer(0, 25))]
            # Each partition's producer batches fail on their own: what was in flight differs by partition.
            cuts = {p: kill if self.choose.chance(50) else self.choose.integer(start, kill) for p in self.records}
            for place, event in enumerate(queue[:kill]):
                home = self.partition(event)
                if place < start or place < cuts[home]:
                    self.write(event, home)
            self.features["restart"] += 1
            self._count_restart(queue, start, kill)
            queue = self._tail(queue, start, kill, boundaries, connector)
            floor = 0
            self._run += 1
        for event in queue:
            self.write(event, self.partition(event))

    def _count_restart(self, queue: list[Event], start: int, kill: int) -> None:
        repeated = [event for event in queue[start:kill] if id(event) in self._seen]
        self.features["redelivery"] += bool(repeated)
        if repeated and start and queue[start - 1].tx == queue[start].tx:
            self.features["redelivery_in_mid_transaction"] += 1
        if any(event.half == "create" for event in repeated):
            self.features["redelivered_key_change"] += 1
        if any(event.op == "t" for event in repeated):
            self.features["redelivered_truncate"] += 1

    def _tail(
        self, queue: list[Event], start: int, kill: int, boundaries: dict[int, Boundary], connector: Connector
    ) -> list[Event]:
        """What the next run sends. An incremental snapshot that was not flushed is read again from its start."""
        if not any(event.snapshot == "incremental" for event in queue[start:kill]):
            return queue[start:]
        self.features["incremental_again"] += 1
        place = kill
        while place < len(queue) and queue[place].tx == queue[place - 1].tx:
            place += 1
        boundary = boundaries[queue[place - 1].tx]
        rest = [event for event in queue[start:place] if event.snapshot != "incremental"]
        fresh = connector.incremental(boundary, boundary.rows)
        if boundary.regressed and fresh:
            # From here on the connector reads the new server: it cannot go back to the old one's positions.
            fresh[0].after_regress = True
        return rest + fresh + [event for event in queue[place:] if event.snapshot != "incremental"]
