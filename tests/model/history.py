"""Draws one whole history: a source's life, its events as sent by a connector and held by Kafka, and the truth."""

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tests.model.choose import Chooser, chooser
from tests.model.connectors import CONNECTORS, MYSQLS, ConnectorName, Identity, draw_connector
from tests.model.delivery import Broker, Delivery, Encoder, KafkaRecord
from tests.model.events import Boundary, Connector, Event
from tests.model.knobs import Knobs
from tests.model.mysql import MySql
from tests.model.script import Abilities, Script
from tests.model.shapes import LAYOUTS, Column, Layout, Row, TableShape
from tests.model.source import SourceDatabase, Transaction


@dataclass(slots=True)
class History:
    topic: str
    source_name: str
    connector: ConnectorName
    identity: Identity
    """Of PostgreSQL; the others log whole before images, which is ``full``."""
    encoding: Literal["plain", "schema"]
    layout: Layout
    records: dict[int, list[KafkaRecord]]
    """Per partition, in offset order. Offsets may begin above 0 and have gaps."""
    starts: dict[int, int]
    ends: dict[int, int]
    """Exclusive end offset per partition, at or above the last record's offset plus one."""
    truth: list[Row]
    """The source's rows in the end, sorted; a row of a table without a key occurs as often as the source has it."""
    deliveries: list[Delivery]
    """In the order of the connector's sending, which is also each partition's order."""
    features: Counter[str] = field(default_factory=Counter)

    @property
    def table(self) -> TableShape:
        return self.layout.table

    @property
    def columns(self) -> tuple[Column, ...]:
        return self.table.columns

    @property
    def key(self) -> tuple[str, ...]:
        return self.table.key

    @property
    def whole_before(self) -> bool:
        return self.identity == "full"

    def __repr__(self) -> str:
        sizes = {partition: len(records) for partition, records in self.records.items()}
        return (
            f"<History {self.connector}/{self.identity} {self.layout.name} {self.encoding} records={sizes} "
            f"rows={len(self.truth)} {dict(sorted(self.features.items()))}>"
        )

    def listing(self) -> str:
        """Every record in sending order, short, for the report of a failure."""
        lines = [repr(self)]
        for place, delivery in enumerate(self.deliveries):
            event, source = delivery.event, delivery.event.source or {}
            names = ("file", "pos", "row", "sequence", "commit_lsn", "change_lsn", "snapshot")
            position = " ".join(str(source[name]) for name in names if source.get(name) is not None)
            half = f" {event.half}<->{event.other_key}" if event.half else ""
            again = " AGAIN" if delivery.again else ""
            lines.append(
                f"{place:4} p{delivery.partition}@{delivery.offset}{again} tx{event.tx} {event.kind} {event.op} "
                f"{event.key}{half} [{position}] before={event.before} after={event.after}"
            )
        return "\n".join(lines + [f"truth: {row}" for row in self.truth])


def draw_history(
    source: Any,
    connector: ConnectorName | None = None,
    identity: Identity | None = None,
    layout: str | Layout | None = None,
    knobs: Knobs | None = None,
) -> History:
    """One history from a seed, a ``random.Random``, or Hypothesis' ``draw``/``data``. None leaves the choice to it."""
    return _Drawing(chooser(source), knobs or Knobs()).history(connector, identity, layout)


class _Drawing:
    def __init__(self, choose: Chooser, knobs: Knobs) -> None:
        self.choose, self.knobs = choose, knobs
        self.features: Counter[str] = Counter()

    def flag(self, wanted: bool | None, percent: int) -> bool:
        return self.choose.chance(percent) if wanted is None else wanted

    def history(
        self, connector: ConnectorName | None, identity: Identity | None, layout: str | Layout | None
    ) -> History:
        choose, knobs = self.choose, self.knobs
        source: ConnectorName = connector if connector is not None else choose.choice(CONNECTORS)
        images: Identity = "full"
        if source == "postgresql":
            identities: tuple[Identity, ...] = ("default", "full", "default", "full", "default", "nothing")
            images = identity if identity is not None else choose.choice(identities)
        if layout is None:
            layout = choose.choice(list(LAYOUTS))
        target = LAYOUTS[layout] if isinstance(layout, str) else layout
        database = SourceDatabase(target.table, step_ms=choose.choice(knobs.step_ms))
        script = Script(choose, database, knobs, self._abilities(source, images, target.table))
        teller = draw_connector(
            choose,
            knobs,
            self.features,
            source,
            images,
            target.table,
            metadata=self.flag(knobs.extras, 10),
            max_placeholder=bool(target.table.key) and self.flag(knobs.max_placeholder, 25),
        )
        operations = choose.integer(*knobs.operations)

        events = self._snapshots(database, script, teller)
        told = len(database.history)
        regress = self.flag(knobs.regress, 15) and bool(target.table.key)
        overlapping = self.flag(knobs.overlapping, 60)
        first = choose.integer(operations // 3, operations) if regress else operations
        script.run(first, overlapping)
        turn = len(database.history)
        if regress:
            database.advance(ms=5000)
            script.run(max(1, operations - first), overlapping)
        self.features += script.features

        stream, boundaries = self._stream(database, teller, told, turn if regress and turn > told else None)
        events += stream
        events = self._extras(events, teller)

        partitions = knobs.partitions or choose.integer(1, 3)
        partitions = partitions if target.table.key else 1
        schema = (knobs.encoding or choose.choice(("plain", "schema"))) == "schema"
        topic = f"{teller.name}.{'src' if source in MYSQLS else 'public'}.{target.table.name}"
        encoder = Encoder(teller, topic, schema, choose.choice(("false", None)))
        broker = Broker(choose, encoder, knobs, partitions, self.flag(knobs.gaps, 15))
        restarts = choose.integer(1, 2) if self.flag(knobs.redelivery, 50) else 0
        broker.deliver(events, boundaries, restarts, teller)
        self.features += broker.features
        history = History(
            topic,
            teller.name,
            source,
            images,
            "schema" if schema else "plain",
            target,
            broker.records,
            broker.starts,
            broker.ends,
            database.rows(),
            broker.deliveries,
            self.features,
        )
        self._count_crossings(history)
        return history

    def _abilities(self, connector: str, identity: str, table: TableShape) -> Abilities:
        writable = identity != "nothing" and (bool(table.key) or identity == "full")
        direct = connector in ("sqlserver", "oracle", "db2") or (connector == "postgresql" and identity == "full")
        direct = direct or (connector == "postgresql" and self.knobs.deferred_swaps_without_images)
        truncates = connector in (*MYSQLS, "postgresql")
        return Abilities(writable, direct, truncates, connector in MYSQLS)

    def _snapshots(self, database: SourceDatabase, script: Script, teller: Connector) -> list[Event]:
        choose, knobs = self.choose, self.knobs
        if not self.flag(knobs.snapshot, 60):
            return []
        script.fill(choose.integer(1, 8))
        events: list[Event] = []
        if teller.table.key and self.flag(knobs.restarted_snapshot, 12):
            rows = database.rows()
            cut = choose.integer(1, max(1, len(rows)))
            events += teller.snapshot(rows, database.tick, database.ms + 300)[:cut]
            script.touch(choose.integer(0, 4))
            database.advance(ms=2000)
            self.features["snapshot_again"] += 1
        events += teller.snapshot(database.rows(), database.tick, database.ms + 300)
        database.advance(ms=1000)
        self.features["snapshot"] += bool(events)
        if isinstance(teller, MySql):
            teller.pos += 202
        return events

    def _stream(
        self, database: SourceDatabase, teller: Connector, told: int, turn: int | None
    ) -> tuple[list[Event], dict[int, Boundary]]:
        """Events of the transactions after the first ``told``; positions start again before number ``turn``."""
        choose = self.choose
        events: list[Event] = []
        boundaries: dict[int, Boundary] = {}
        transactions = database.history[told:]
        snapshots = self._incremental_plan(len(transactions)) if teller.table.key else {}
        upper: tuple[Any, ...] | None = None
        reached: tuple[Any, ...] | None = None
        regressed = False
        for place, tx in enumerate(transactions):
            if turn is not None and told + place == turn:
                regressed = True
                drop = choose.choice((1, 3, 2, 40)) if isinstance(teller, MySql) else choose.choice((2, 9, 70, 5000))
                teller.regress(transactions[place - 1].commit_tick, drop, forget=choose.chance(40))
                self.features["regress"] += 1
                events += self._replay(teller, transactions[max(0, place - 2) : place])
                earlier = teller.boundary(transactions[place - 1])
                boundaries[transactions[place - 1].number] = replace(earlier, regressed=True)
            elif choose.chance(8):
                teller.rotate()
            fresh = teller.stream(tx)
            if regressed and fresh:
                fresh[0].after_regress, regressed = True, False
            events += fresh
            boundary = boundaries[tx.number] = teller.boundary(tx)
            if place in snapshots:
                # One snapshot in one or two chunks, by key, each at its own place of the stream.
                rows = sorted(boundary.rows, key=teller.table.key_of)
                if upper is None:
                    upper = teller.table.key_of(rows[-1]) if rows else ()
                last = snapshots[place]
                rows = [r for r in rows if reached is None or teller.table.key_of(r) > reached]
                rows = [r for r in rows if upper and teller.table.key_of(r) <= upper]
                chunk = rows if last else rows[: choose.integer(1, max(1, len(rows)))]
                if chunk:
                    reached = teller.table.key_of(chunk[-1])
                    self.features["incremental"] += 1
                read = teller.incremental(boundary, chunk)
                if regressed and read:
                    read[0].after_regress, regressed = True, False
                events += read
        return events, boundaries

    def _incremental_plan(self, transactions: int) -> dict[int, bool]:
        """Transaction after which a chunk comes → whether it is the last one."""
        if not transactions or not self.flag(self.knobs.incremental, 30):
            return {}
        first = self.choose.integer(0, transactions - 1)
        if first == transactions - 1 or self.choose.chance(50):
            return {first: True}
        return {first: False, self.choose.integer(first + 1, transactions - 1): True}

    def _replay(self, teller: Connector, transactions: list[Transaction]) -> list[Event]:
        if not self.knobs.gtid_replay or not isinstance(teller, MySql) or not teller.table.key:
            return []
        events = [event for tx in transactions for event in teller.stream(tx)]
        for event in events:
            event.repeats = True
            event.tx = transactions[-1].number
        if events:
            events[0].after_regress = True
            self.features["gtid_replay"] += 1
        return events

    def _extras(self, events: list[Event], teller: Connector) -> list[Event]:
        choose = self.choose
        if not self.flag(self.knobs.tombstones, 85):
            events = [event for event in events if event.kind != "tombstone"]
            self.features["no_tombstones"] += 1
        if not self.flag(self.knobs.extras, 20):
            return events
        out: list[Event] = []
        for event in events:
            out.append(event)
            if event.snapshot != "initial" and choose.chance(10):
                out.append(Event("heartbeat", unit=teller.next_unit(), tx=event.tx, ms=event.ms))
                self.features["heartbeat"] += 1
        return out

    def _count_crossings(self, history: History) -> None:
        """Key changes whose halves lie in different partitions, creates that lie before their delete's partner."""
        halves: dict[int, dict[str, int]] = {}
        for delivery in history.deliveries:
            if delivery.event.half and delivery.event.kind == "change":
                halves.setdefault(delivery.event.unit, {})[delivery.event.half] = delivery.partition
            self.features[f"op_{delivery.event.op}"] += delivery.event.kind == "change"
            self.features["tombstone"] += delivery.event.kind == "tombstone"
        crossing = [pair for pair in halves.values() if len(pair) == 2 and pair["delete"] != pair["create"]]
        self.features["key_change_across_partitions"] += len(crossing)
        history.features = self.features = +self.features
