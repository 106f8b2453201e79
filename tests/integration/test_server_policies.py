"""Row policies through the endpoint: created, seen, applied under FINAL as the setting says, and kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import clickhouse_connect
import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError

from ch_sink.local.clickhouse.launch import EmbeddedClickHouse

pytestmark = pytest.mark.integration
LIVE = "SELECT k FROM shop.t FINAL ORDER BY k"


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedClickHouse]:
    with EmbeddedClickHouse(tmp_path_factory.mktemp("data")) as endpoint:
        yield endpoint


@pytest.fixture
def client(endpoint: EmbeddedClickHouse) -> Iterator[Client]:
    client = clickhouse_connect.get_client(host=endpoint.host, port=endpoint.port)
    client.command("CREATE DATABASE IF NOT EXISTS shop")
    client.command(
        "CREATE OR REPLACE TABLE shop.t (k Int64, v UInt64, sign Int8) ENGINE = ReplacingMergeTree(v) ORDER BY k"
    )
    client.command("INSERT INTO shop.t VALUES (1, 1, 1), (2, 1, 1)")
    client.command("INSERT INTO shop.t VALUES (1, 2, -1)")  # a delete row
    yield client
    client.command("DROP ROW POLICY IF EXISTS p ON shop.t")
    client.close()


def live(client: Client, **settings: object) -> list[int]:
    return [row[0] for row in client.query(LIVE, settings=settings).result_rows]


def test_before_final_a_policy_brings_deleted_rows_back_and_after_it_not(client: Client) -> None:
    assert live(client) == [1, 2]
    client.command("CREATE ROW POLICY p ON shop.t USING sign != -1 TO ALL")
    assert live(client, apply_row_policy_after_final=1) == [2]
    assert live(client, apply_row_policy_after_final=0) == [1, 2]
    client.command("DROP ROW POLICY p ON shop.t")
    assert live(client) == [1, 2]
    assert client.query("SELECT sign FROM shop.t FINAL WHERE k = 1").first_row == (-1,)


def test_a_policy_for_a_role_holds_for_requests_in_that_role(client: Client) -> None:
    client.command("CREATE ROW POLICY p ON shop.t USING sign != -1 TO readers, `app user`")
    assert live(client) == [1, 2]
    assert live(client, role="readers") == [2]
    assert live(client, role="app user") == [2]
    assert live(client, role="writers") == [1, 2]
    client.command("DROP ROW POLICY p ON shop.t")
    client.command("CREATE ROW POLICY p ON shop.t USING sign != -1 TO ALL EXCEPT default")
    assert live(client) == [1, 2]


def test_faulty_policies_are_refused_and_change_nothing(client: Client) -> None:
    client.command("CREATE ROW POLICY p ON shop.t USING k = 2 TO ALL")
    for text, code in [
        ("CREATE ROW POLICY p ON shop.t USING 1 TO ALL", 493),
        ("CREATE ROW POLICY q ON shop.t USING (k = TO ALL", 62),
        ("DROP ROW POLICY nothing ON shop.t", 523),
        ("CREATE ROW POLICY q ON shop.`odd name` USING 1 TO ALL", 48),
    ]:
        with pytest.raises(DatabaseError) as caught:
            client.command(text)
        assert caught.value.code == code, text
    assert live(client) == [2]
    client.command("CREATE ROW POLICY IF NOT EXISTS p ON shop.t USING 1 TO ALL")
    assert live(client) == [2]


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_policies_and_rows_survive_a_restart(endpoint: EmbeddedClickHouse, client: Client, end: str) -> None:
    client.command("CREATE ROW POLICY p ON shop.t USING sign != -1 TO ALL")
    getattr(endpoint, end)()
    endpoint.start()
    assert live(client) == [2]


def test_queries_and_inserts_go_on_while_policies_change(endpoint: EmbeddedClickHouse, client: Client) -> None:
    client.command("CREATE OR REPLACE TABLE shop.log (a UInt64) ENGINE = MergeTree ORDER BY a")
    failures: list[BaseException] = []
    done = threading.Event()
    inserted = [0, 0]

    def work(who: int) -> None:
        own = clickhouse_connect.get_client(host=endpoint.host, port=endpoint.port, compress=False)
        try:
            while not done.is_set():
                own.insert("shop.log", [[n] for n in range(1000)], column_names=["a"])
                inserted[who] += 1000
                assert own.query("SELECT count() FROM numbers(1000)").first_row == (1000,)
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(who,)) for who in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(4):
        client.command(f"CREATE ROW POLICY p ON shop.t USING k > {turn} TO ALL")
        client.command("DROP ROW POLICY p ON shop.t")
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert client.command("SELECT count() FROM shop.log") == sum(inserted)


def test_a_policy_file_of_another_version_is_named(tmp_path: Path) -> None:
    with EmbeddedClickHouse(tmp_path) as endpoint:
        policies = endpoint.path / "ch_sink" / "row_policies.json"
    policies.write_text('[{"name": 1}')
    with pytest.raises(Exception, match=r"row_policies\.json"):
        EmbeddedClickHouse(tmp_path).start()
