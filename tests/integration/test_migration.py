"""Tables that other sinks have made and filled, taken over: as these products create and write them.

Their public DDL and rows: Altinity/clickhouse-sink-connector, ``ClickHouseAutoCreateTable.java``,
``PreparedStatementExecutor.java``, ``SnowFlakeId.java``, ``DebeziumChangeEventCapture.java`` (``addVersion``);
PeerDB-io/peerdb, ``flow/connectors/clickhouse/normalize.go`` and ``normalize_query.go``;
ClickHouse/clickhouse-kafka-connect, ``DebeziumRecordConvertor.java`` and ``README.md``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest

from ch_sink.cli.init import apply_plan, plan_one
from ch_sink.cli.output import Output
from ch_sink.clickhouse import ClickHouseTableAdmin, Client, detect
from ch_sink.config import Config
from ch_sink.discovery.init_plan import other_rows
from ch_sink.discovery.look import examine
from ch_sink.errors import StreamFailed
from ch_sink.snapshot.reader import Value
from ch_sink.table.checks import Finding, check_table
from ch_sink.trust.refill import Refill
from ch_sink.trust.repair import repaired
from ch_sink.trust.resync import resynced
from ch_sink.trust.subject import Options, Subject
from ch_sink.trust.verify import verified
from tests.support.hand import mysql, records_of
from tests.support.stream import Feed
from tests.support.trust import stores_of, subject_of

pytestmark = pytest.mark.integration

SNOWFLAKE = (1_732_500_000_000 - 1_288_834_974_657) << 22
"""Milliseconds since an epoch of its own, above 22 bits of the transaction's number."""
NANOSECONDS = 1_732_500_000_000_000_000


@dataclass(frozen=True)
class Product:
    """How a product creates the table ``orders``, and its columns behind (id, v) with what it writes there."""

    ddl: str
    own: str = ""
    version: int = 0
    step: int = 1
    """From one change's version to the next one's."""
    deleted: tuple[int, int] = (0, 1)
    """The mark of a row that is there, and of one that was deleted."""


ALTINITY = Product(
    "CREATE TABLE {0}.`orders`(`id` Int64 NOT NULL,`v` String NULL,`_version` UInt64,`is_deleted` UInt8)  "
    "Engine=ReplacingMergeTree(_version,is_deleted) PRIMARY KEY(id) ORDER BY(id)",
    "_version, is_deleted",
    SNOWFLAKE,
)
PRODUCTS = {
    "Altinity": ALTINITY,
    "Altinity before ClickHouse 23.2": Product(
        "CREATE TABLE {0}.`orders`(`id` Int64 NOT NULL,`v` String NULL,`_sign` Int8,`_version` UInt64) "
        "ENGINE = ReplacingMergeTree(_version) PRIMARY KEY(id) ORDER BY(id)",
        "_version, _sign",
        NANOSECONDS,
        deleted=(1, -1),
    ),
    "PeerDB": Product(
        "CREATE TABLE IF NOT EXISTS {0}.`orders` (`id` Int64, `v` Nullable(String), "
        "`_peerdb_synced_at` DateTime64(9) DEFAULT now64(), `_peerdb_is_deleted` UInt8, `_peerdb_version` UInt64) "
        "ENGINE = ReplacingMergeTree(`_peerdb_version`) PRIMARY KEY (`id`) ORDER BY (`id`)",
        "_peerdb_version, _peerdb_is_deleted",
        NANOSECONDS,
    ),
    "Kafka Connect": Product(
        "CREATE TABLE {0}.orders (id Int64, v Nullable(String), _version UInt64, is_deleted UInt8) "
        "ENGINE = ReplacingMergeTree(_version, is_deleted) ORDER BY id",
        "_version, is_deleted",
        25_000_000,  # a log position
    ),
}
UNORDERED = {
    "Altinity in Kafka mode, without GTIDs": replace(ALTINITY, version=(1 << 64) - 1, step=0),
    "Kafka Connect without debeziumCDCEnabled": Product(
        "CREATE TABLE {0}.orders (`id` Int64, `v` Nullable(String)) ENGINE = MergeTree() ORDER BY id"
    ),
}
"""Nothing in these tables says which of two rows is the newer one."""

HISTORY = [
    mysql("u", {"id": 4}, {"id": 4, "v": "d"}, {"id": 4, "v": "d2"}, 800),
    mysql("u", {"id": 1}, {"id": 1, "v": "a"}, {"id": 1, "v": "a2"}, 900),
    mysql("d", {"id": 5}, {"id": 5, "v": "e"}, None, 1000),
    mysql("c", {"id": 6}, None, {"id": 6, "v": "f2"}, 1100),
    mysql("c", {"id": 7}, None, {"id": 7, "v": "g"}, 1200),
]
"""What the topic holds. The other sink has applied the first change, too."""
LATER = [mysql("u", {"id": 7}, {"id": 7, "v": "g"}, {"id": 7, "v": "g2"}, 1300)]
SOURCE = {1: "a2", 2: "b2", 4: "d2", 6: "f2", 7: "g"}
"""The rows of the source in the end."""
WRITTEN = [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e"), (6, "f"), (4, "d2"), (6, None)]
"""Changes as the other sink applied them; it has lost that of row 2 to ``b2`` and the delete of row 3."""
LEFT = {**SOURCE, 2: "b", 3: "c"}
"""What the stream makes of the table: its own changes have won, and what the other sink lost is still wrong."""


def written_by(product: Product, client: Client, database: str) -> None:
    """Create the table and write the rows as the product does: in two batches."""
    client.command(product.ddl.format(database))
    names = ", ".join(["id", "v", *filter(None, [product.own])])
    rows = []
    for n, (id_, v) in enumerate(WRITTEN):
        own = f", {product.version + n * product.step}, {product.deleted[v is None]}" if product.own else ""
        rows.append(f"({id_}, {repr(v) if v else 'NULL'}{own})")
    for batch in (rows[:6], rows[6:]):
        client.command(f"INSERT INTO {database}.orders ({names}) VALUES {', '.join(batch)}")


@dataclass(frozen=True)
class Rows:
    """The source's table."""

    rows_by_id: dict[int, str]

    def position(self) -> int:
        return 1

    def settled(self, patience: float) -> int:
        return 0

    def columns(self) -> dict[str, str]:
        return {"id": "bigint", "v": "varchar(20)"}

    def rows(self, names: Sequence[str], size: int) -> Iterator[list[tuple[Value, ...]]]:
        yield [tuple({"id": str(i), "v": v}[name] for name in names) for i, v in self.rows_by_id.items()]

    def close(self) -> None:
        pass


@dataclass
class Move:
    """A file for the stream over the table that another sink has left."""

    client: Client
    database: str
    table: str = "orders"

    @property
    def config(self) -> Config:
        return Config.model_validate(
            {
                "kafka": {"topic": "t", "bootstrap.servers": "localhost:1"},
                "clickhouse": {"url": "http://localhost:1", "database": self.database, "table": self.table},
            }
        )

    def findings(self) -> dict[str, Finding]:
        """What `check` says of the table, by title."""
        config = self.config
        table = detect(self.client, self.database, self.table, config.policy())
        found = check_table(table, ("id",), config.policy().changes, source_columns=("id", "v"))
        versions = other_rows(config, self.client, table, ("id",))
        return {f.title: f for f in [*found, *([versions] if versions else [])]}

    def follow(self, findings: dict[str, Finding]) -> None:
        """Do what the findings say."""
        for finding in findings.values():
            for statement in (finding.remedy or "").splitlines():
                self.client.command(statement.rstrip(";"))

    def init(self) -> None:
        """`ch_sink init FILE --apply`."""
        records = records_of(HISTORY)
        plan = plan_one(Output(), self.config, examine([records], "t", self.config.policy()), self.client)
        apply_plan(Output(), self.client, plan, quiet=True)

    def feed(self) -> Feed:
        policy, records = self.config.policy(), records_of([*HISTORY, *LATER])
        target = detect(self.client, self.database, self.table, policy)
        unread = replace(records_of([]), partition=1)
        all_records = {0: records, 1: unread}
        feed = Feed(self.client, self.database, target, "mariadb-json_plain", "t", policy, all_records)
        # As commands see the topic: the rest comes later.
        feed.records = {0: records.slice(0, len(HISTORY)), 1: unread}
        return feed

    def subject(self, feed: Feed, source: dict[int, str]) -> Subject:
        found = subject_of(self.client, self.database, feed, "mariadb-json_plain", ("id",))
        return replace(found, source=lambda: Rows(source))

    def refill(self, subject: Subject) -> Refill:
        return Refill(subject, *stores_of(subject), patience=0)

    def current(self) -> dict[int, str]:
        rows = self.client.rows(f"SELECT id, v FROM {self.database}.{self.table}_current")
        assert len(rows) == len({row["id"] for row in rows})
        return {row["id"]: row["v"] for row in rows}

    def stored(self) -> list[tuple[object, ...]]:
        """All rows of the table, whatever readers see of them."""
        return sorted((tuple(r.values()) for r in self.client.rows(f"SELECT * FROM {self.database}.orders")), key=repr)

    def exchange(self, other: str) -> None:
        self.client.command(f"EXCHANGE TABLES {self.database}.orders AND {self.database}.{other}")


AGAINST = Options(against="source", patience=0)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_table_is_taken_over_as_it_is(client: Client, database: str, name: str) -> None:
    written_by(PRODUCTS[name], client, database)
    it = Move(client, database)
    before = it.stored()
    found = it.findings()
    assert {title for title, f in found.items() if f.level != "ok"} == {
        "deduplication",
        *(["deletes"] if name == "PeerDB" else []),
    }
    assert name.split()[0] in found["versions"].detail
    if name != "PeerDB":
        client.command(f"CREATE TABLE {database}.orders_before AS {database}.orders")
        client.command(f"ALTER TABLE {database}.orders_before ATTACH PARTITION ALL FROM {database}.orders")
    it.follow(found)
    assert {f.level for f in it.findings().values()} == {"ok"}
    it.init()
    feed = it.feed()
    feed.chunk(1, 0)  # nothing has come on this partition
    feed.chunk(0, len(HISTORY))
    assert it.current() == LEFT
    with verified(it.subject(feed, SOURCE), AGAINST) as done:
        report = done.report
    assert (report.missing, report.extra, report.different, report.columns) == (0, 1, 1, {"v": 1})
    assert {e.key["id"] for e in report.examples} == {2, 3}
    if name == "Kafka Connect":
        feed.runner.stop()
        assert resynced(it.refill(it.subject(feed, SOURCE)), apply=True).applied
    else:
        assert repaired(it.subject(feed, SOURCE), AGAINST, apply=True).all_repaired
    assert it.current() == SOURCE
    feed.run()
    assert it.current() == {**SOURCE, 7: "g2"}
    it.exchange("orders_before")  # the way back
    assert it.stored() == before


@pytest.mark.long
@pytest.mark.parametrize("name", ["Altinity", "Altinity before ClickHouse 23.2"])
def test_rows_of_before_the_topic_are_not_judged_by_it(client: Client, database: str, name: str) -> None:
    """Its connector began without a snapshot, so it says nothing of most rows."""
    written_by(PRODUCTS[name], client, database)
    it = Move(client, database)
    it.follow(it.findings())
    it.init()
    feed = it.feed()
    feed.chunk(1, 0)
    feed.chunk(0, len(HISTORY))
    topic = Options(against="topic", patience=0)
    with verified(it.subject(feed, SOURCE), topic) as done:
        report = done.report
    assert (report.missing, report.extra, report.different, report.unknown) == (0, 0, 0, 2)
    assert repaired(it.subject(feed, SOURCE), topic, apply=True).all_repaired
    feed.runner.stop()
    with pytest.raises(StreamFailed, match="had rows before the stream read topic t, which does not begin with a snap"):
        resynced(it.refill(it.subject(feed, SOURCE)), against="topic", apply=True)
    assert it.current() == LEFT


@pytest.mark.long
def test_changes_win_over_an_initial_load_and_its_repair(client: Client, database: str) -> None:
    """PeerDB writes version 0 into each row of an initial load, and the repair of such a row writes a low one, too."""
    written_by(replace(PRODUCTS["PeerDB"], version=0, step=0), client, database)
    it = Move(client, database)
    it.follow(it.findings())
    assert it.findings()["versions"].level == "ok"
    it.init()
    feed = it.feed()
    feed.chunk(0, len(HISTORY))
    assert it.current() == LEFT
    assert repaired(it.subject(feed, SOURCE), AGAINST, apply=True).all_repaired
    top = client.rows(f"SELECT id, max(_peerdb_version) AS v FROM {database}.orders GROUP BY id")
    first = 1 << 56 | 1  # of the first change of the partition that the stream has not read yet
    assert {row["id"] for row in top if row["v"] < first} == {2, 3}
    feed.run()
    assert it.current() == {**SOURCE, 7: "g2"}


@pytest.mark.long
@pytest.mark.parametrize("name", UNORDERED)
def test_a_table_without_an_order_gives_way_to_a_new_one(client: Client, database: str, name: str) -> None:
    written_by(UNORDERED[name], client, database)
    before = Move(client, database).stored()
    assert Move(client, database).findings()["versions"].level == "fail"
    it = Move(client, database, "orders_next")
    it.init()
    assert {f.level for f in it.findings().values()} == {"ok"}
    feed = it.feed()
    feed.chunk(0, len(HISTORY))
    feed.runner.stop()
    assert resynced(it.refill(it.subject(feed, SOURCE)), apply=True).applied
    with verified(it.subject(feed, SOURCE), AGAINST) as done:
        report = done.report
    assert (report.rows, report.missing, report.extra, report.different) == (len(SOURCE), 0, 0, 0)
    it.exchange("orders_next")
    feed.runner.stop()
    it.table = "orders"  # in the file, with the same `stream`
    it.init()
    feed.admin.inner = ClickHouseTableAdmin(client, database, "orders", it.config.policy())
    feed.admin.looked = True
    feed.run()
    assert it.current() == {**SOURCE, 7: "g2"}
    it.exchange("orders_next")
    assert it.stored() == before
