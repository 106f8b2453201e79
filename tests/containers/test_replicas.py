"""Two replicas and a Keeper behind a balancer that takes turns: one replica lags, one is killed."""

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ch_sink.clickhouse import (
    ClickHouseLedger,
    ClickHouseLookup,
    ClickHouseSettings,
    ClickHouseTableAdmin,
    ClickHouseWriter,
    Client,
    Retry,
    await_earlier_inserts,
    detect,
    execute,
)
from ch_sink.errors import LedgerConflict
from ch_sink.model.policy import policy_of
from ch_sink.ports import Insert
from ch_sink.stream.claims import forget
from ch_sink.table.ddl import state_table
from ch_sink.table.model import TargetTable
from ch_sink.table.spec import TableSpec
from ch_sink.trust.shadow import shadow_of, shadow_tables, staying
from tests.containers.conftest import VERSIONS, docker_engine, ready
from tests.support.endpoint import settings_for
from tests.support.proxy import Balancer

IMAGES = [version for version in VERSIONS if not version.startswith("http")]
USER, PASSWORD = "sink", "of the test"
CONFIG = """\
<clickhouse>
    <display_name>{name}</display_name>
    <interserver_http_host>{name}</interserver_http_host>
    <macros><shard>1</shard><replica>{name}</replica></macros>
    <zookeeper>
        <node><host>keeper</host><port>9181</port></node>
        <session_timeout_ms>10000</session_timeout_ms>
    </zookeeper>
    <distributed_ddl><path>/clickhouse/task_queue/ddl</path></distributed_ddl>
    <remote_servers><pair><shard><internal_replication>true</internal_replication>
        <replica><host>one</host><port>9000</port><user>sink</user><password>of the test</password></replica>
        <replica><host>two</host><port>9000</port><user>sink</user><password>of the test</password></replica>
    </shard></pair></remote_servers>
    {more}
</clickhouse>
"""
KEEPER = """\
<keeper_server>
    <tcp_port>9181</tcp_port><server_id>1</server_id>
    <log_storage_path>/var/lib/clickhouse/coordination/log</log_storage_path>
    <snapshot_storage_path>/var/lib/clickhouse/coordination/snapshots</snapshot_storage_path>
    <raft_configuration><server><id>1</id><hostname>keeper</hostname><port>9234</port></server></raft_configuration>
</keeper_server>
"""
KEYS = pa.table({"id": pa.array([1], pa.int64())})


@pytest.fixture(autouse=True)
def _needs_a_server() -> None:
    """These tests start servers of their own."""


@dataclass
class Pair:
    """The servers, each reached directly, and a client that meets them in turns."""

    containers: dict[str, Any]
    direct: dict[str, Client]
    client: Client
    table: TargetTable

    def kill(self, name: str) -> None:
        """As by the kernel: its session in the keeper stays until it has timed out."""
        self.containers[name].get_wrapped_container().kill()

    def lag(self, name: str, table: str, seconds: float) -> threading.Timer:
        """This replica fetches nothing for so long."""
        self.direct[name].command(f"SYSTEM STOP FETCHES {table}")
        timer = threading.Timer(seconds, lambda: self.direct[name].command(f"SYSTEM START FETCHES {table}"))
        timer.start()
        return timer


@pytest.fixture(params=IMAGES)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    docker_engine()
    from testcontainers.core.container import DockerContainer
    from testcontainers.core.network import Network

    with Network() as network:
        containers = {}
        for name in ("keeper", "one", "two"):
            config = tmp_path / f"{name}.xml"
            config.write_text(CONFIG.format(name=name, more=KEEPER if name == "keeper" else ""))
            container = DockerContainer(request.param).with_exposed_ports(8123)
            container.with_network(network).with_network_aliases(name)
            container.with_volume_mapping(str(config), f"/etc/clickhouse-server/config.d/{name}.xml")
            for key, value in {"USER": USER, "PASSWORD": PASSWORD, "DEFAULT_ACCESS_MANAGEMENT": "1"}.items():
                container.with_env(f"CLICKHOUSE_{key}", value)
            containers[name] = container
        try:
            direct = {name: ready(_settings(container.start())) for name, container in containers.items()}
            direct.pop("keeper")
            yield _prepared(containers, direct)
        finally:
            for container in containers.values():
                container.stop()


def _settings(container: Any) -> ClickHouseSettings:
    url = f"http://{container.get_container_host_ip()}:{container.get_exposed_port(8123)}"
    return settings_for(url, username=USER, password=PASSWORD, retry=Retry(8, 0.1, 1.0))


def _prepared(containers: dict[str, Any], direct: dict[str, Client]) -> Pair:
    one = direct["one"]
    one.command("CREATE DATABASE d ON CLUSTER pair")
    one.command(
        "CREATE TABLE d.t ON CLUSTER pair (id Int64, v String, _version UInt128, _is_deleted UInt8) "
        "ENGINE = ReplicatedReplacingMergeTree('/t/{shard}', '{replica}', _version, _is_deleted) ORDER BY id"
    )
    execute(
        one,
        [
            state_table(
                "ledger", TableSpec("d", "t", cluster="pair", replication="path", state_tables={"ledger": "ledger"})
            )
        ],
    )
    balancer = Balancer(*(client.settings.url for client in direct.values()))
    settings = settings_for(balancer.url, username=USER, password=PASSWORD, retry=Retry(8, 0.1, 1.0))
    client = Client(settings)
    return Pair(containers, direct, client, detect(client, "d", "t", policy_of()))


def rows(version: int) -> pa.Table:
    values: dict[str, Any] = {"id": pa.array([1], pa.int64()), "v": [f"v{version}".encode()]}
    values["_version"] = pa.array([version.to_bytes(16, "little")], pa.binary(16))
    return pa.table({**values, "_is_deleted": pa.array([0], pa.uint8())})


def newest(lookup: ClickHouseLookup) -> str:
    """The value of the row that is stored under the key."""
    [value] = lookup.fetch(KEYS).rows.column("v").to_pylist()
    return bytes(value).decode()


def test_a_lookup_is_never_answered_by_a_replica_that_lags(pair: Pair) -> None:
    writer, lookup = ClickHouseWriter(pair.client, pair.table), ClickHouseLookup(pair.client, pair.table, ("id",))
    for version in range(1, 7):
        timer = pair.lag("two" if version % 2 else "one", "d.t", 1.0)
        writer.write(Insert(rows(version), "*"), f"t{version}")
        assert newest(lookup) == f"v{version}"
        timer.join()


def test_a_lookup_waits_for_no_merge(pair: Pair) -> None:
    writer, lookup = ClickHouseWriter(pair.client, pair.table), ClickHouseLookup(pair.client, pair.table, ("id",))
    for name in pair.direct:
        pair.direct[name].command("SYSTEM STOP MERGES d.t")
    for version in range(1, 4):
        writer.write(Insert(rows(version), "*"), f"t{version}")
    pair.direct["one"].command("OPTIMIZE TABLE d.t FINAL", settings={"alter_sync": 0})
    began = time.monotonic()
    assert newest(lookup) == "v3"
    assert time.monotonic() - began < 10


def test_a_truncate_marks_every_row_whichever_server_carries_it_out(pair: Pair) -> None:
    writer = ClickHouseWriter(pair.client, pair.table)
    admin = ClickHouseTableAdmin(pair.client, "d", "t", policy_of())
    for version in range(1, 5):
        timer = pair.lag("two" if version % 2 else "one", "d.t", 1.0)
        writer.write(Insert(rows(version * 10), "*"), f"t{version}")
        admin.truncate(pair.table, version * 10 + 5, "_version", list)
        timer.join()
        assert pair.client.rows("SELECT count() AS n FROM d.t FINAL", of=pair.table) == [{"n": 0}]


def test_a_comparison_stays_with_one_server(pair: Pair) -> None:
    client = staying(pair.client, pair.table)
    for _ in range(3):
        with shadow_tables(client, shadow_of(pair.table, "d", ("id",), pair.table.columns[:2])) as shadow:
            for _ in range(4):
                client.command(f"INSERT INTO {shadow.differences} (step) VALUES (1)", again=False)
            assert client.rows(f"SELECT count() AS n FROM {shadow.differences}") == [{"n": 4}]
            shadow.expect_own(client)


def test_a_superseded_job_inserts_on_no_replica(pair: Pair) -> None:
    first, second = (ClickHouseLedger(pair.client, "d", "ledger", "s") for _ in range(2))
    fence = first.begin("t", 0, first.claim("a"), "1/0")
    forget("s", "a")
    timer = pair.lag("one", "d.ledger", 2.0)
    second.claim("b")
    for number, client in enumerate(pair.direct.values()):
        with pytest.raises(LedgerConflict, match="run b"):
            ClickHouseWriter(client, pair.table).write(Insert(rows(1), "*"), f"late {number}", fence=fence)
    timer.join()
    assert pair.client.rows("SELECT count() AS n FROM d.t") == [{"n": 0}]


def test_the_other_replica_goes_on_when_one_is_killed(pair: Pair) -> None:
    writer, lookup = ClickHouseWriter(pair.client, pair.table), ClickHouseLookup(pair.client, pair.table, ("id",))
    writer.write(Insert(rows(1), "*"), "t1")
    assert newest(lookup) == "v1"
    pair.kill("one")
    writer.write(Insert(rows(2), "*"), "t2")
    assert newest(lookup) == "v2"


def test_work_goes_on_once_the_keeper_knows_that_a_replica_is_dead(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """A claim, the look for earlier inserts, and a change of the table: each takes no longer than a session."""
    two = pair.direct["two"]
    first = ClickHouseLedger(two, "d", "ledger", "s")
    first.claim("a")
    pair.kill("one")
    began = time.monotonic()
    forget("s", "a")
    second = ClickHouseLedger(two, "d", "ledger", "s")
    fence = second.begin("t", 0, second.claim("b"), "1/0")
    await_earlier_inserts(two, pair.table, fence, cluster="pair")
    assert time.monotonic() - began < 60
    execute(two, ["ALTER TABLE d.t ADD COLUMN IF NOT EXISTS more String"])
    execute(two, ["ALTER TABLE d.t ON CLUSTER pair ADD COLUMN IF NOT EXISTS other String"])
    assert time.monotonic() - began < 150
    assert "a replica that is down has not done it" in caplog.text
    assert {"more", "other"} <= {c.name for c in detect(two, "d", "t", policy_of()).columns}
