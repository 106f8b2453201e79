"""Two replicas and a Keeper behind a balancer that takes turns: one replica lags, one is stopped.

Never run so far where it was written, for want of a Docker engine.
"""

import threading
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
    ClickHouseWriter,
    Client,
    Retry,
    create_statement,
    detect,
    execute,
)
from ch_sink.errors import LedgerConflict
from ch_sink.model.policy import policy_of
from ch_sink.ports import Insert
from ch_sink.stream.claims import forget
from ch_sink.table.model import TargetTable
from tests.containers.conftest import VERSIONS, docker_engine, ready
from tests.support.endpoint import settings_for
from tests.support.proxy import Balancer

IMAGES = [version for version in VERSIONS if not version.startswith("http")]
USER, PASSWORD = "sink", "of the test"
CONFIG = """\
<clickhouse>
    <display_name>{name}</display_name>
    <interserver_http_host>{name}</interserver_http_host>
    <listen_host>0.0.0.0</listen_host>
    <macros><shard>1</shard><replica>{name}</replica></macros>
    <zookeeper><node><host>keeper</host><port>9181</port></node></zookeeper>
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
        "CREATE TABLE d.t ON CLUSTER pair (id Int64, v String, _sign Int8, _version UInt128) "
        "ENGINE = ReplicatedCollapsingMergeTree('/t/{shard}', '{replica}', _sign) ORDER BY id"
    )
    execute(one, [create_statement("ledger", "d", "ledger", cluster="pair", replica_path="/ledger/{shard}")])
    balancer = Balancer(*(client.settings.url for client in direct.values()))
    settings = settings_for(balancer.url, username=USER, password=PASSWORD, retry=Retry(8, 0.1, 1.0))
    client = Client(settings)
    return Pair(containers, direct, client, detect(client, "d", "t", policy_of()))


def rows(version: int) -> pa.Table:
    values: dict[str, Any] = {"id": pa.array([1], pa.int64()), "v": [f"v{version}".encode()]}
    values["_sign"] = pa.array([1], pa.int8())
    return pa.table({**values, "_version": pa.array([version.to_bytes(16, "little")], pa.binary(16))})


def test_a_lookup_is_never_answered_by_a_replica_that_lags(pair: Pair) -> None:
    writer, lookup = ClickHouseWriter(pair.client, pair.table), ClickHouseLookup(pair.client, pair.table, ("id",))
    for version in range(1, 7):
        timer = pair.lag("two" if version % 2 else "one", "d.t", 1.0)
        writer.write(Insert(rows(version), "*"), f"t{version}")
        assert lookup.fetch(KEYS).rows.num_rows == version
        timer.join()


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


def test_the_other_replica_goes_on_when_one_is_stopped(pair: Pair) -> None:
    writer, lookup = ClickHouseWriter(pair.client, pair.table), ClickHouseLookup(pair.client, pair.table, ("id",))
    writer.write(Insert(rows(1), "*"), "t1")
    assert lookup.fetch(KEYS).rows.num_rows == 1
    pair.containers["one"].stop()
    writer.write(Insert(rows(2), "*"), "t2")
    assert lookup.fetch(KEYS).rows.num_rows == 2
