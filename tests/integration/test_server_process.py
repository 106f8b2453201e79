"""The endpoint as a process: who owns a directory, how it ends, what is left, and what it costs in memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import clickhouse_connect
import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError, OperationalError

from ch_sink.errors import ClickHouseUnavailable
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from tests.support.endpoint import await_query

pytestmark = pytest.mark.integration


def connect(endpoint: EmbeddedClickHouse, **options: object) -> Client:
    settings: dict[str, object] = {"compress": False, **options}
    return clickhouse_connect.get_client(host=endpoint.host, port=endpoint.port, **settings)  # type: ignore[arg-type]


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[EmbeddedClickHouse]:
    endpoint = EmbeddedClickHouse(tmp_path / "data")
    endpoint.start()
    yield endpoint
    endpoint.close()


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ch_sink.local.clickhouse.server", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.long
def test_a_second_process_is_told_who_owns_the_directory(endpoint: EmbeddedClickHouse) -> None:
    second = serve("--path", str(endpoint.path), "--port", "0")
    assert second.returncode == 2
    assert f"in use by process {endpoint.pid} at {endpoint.url}" in second.stderr
    assert "next: " in second.stderr
    assert "Traceback" not in second.stderr
    with pytest.raises(ClickHouseUnavailable, match="in use by process"):
        EmbeddedClickHouse(endpoint.path).start()


@pytest.mark.long
def test_a_taken_port_and_an_impossible_directory_are_usage_errors(
    endpoint: EmbeddedClickHouse, tmp_path: Path
) -> None:
    taken = serve("--path", str(tmp_path / "other"), "--port", str(endpoint.port))
    assert (taken.returncode, "Cannot listen" in taken.stderr) == (2, True)
    (tmp_path / "file").write_text("")
    impossible = serve("--path", str(tmp_path / "file"), "--port", "0")
    assert (impossible.returncode, "cannot be created" in impossible.stderr) == (2, True)


def test_without_chdb_the_error_names_the_extra(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['chdb'] = None\n"
        "from ch_sink.local.clickhouse.server import main\n"
        f"sys.exit(main(['--path', {str(tmp_path)!r}, '--port', '0']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "pip install 'ch-sink[embedded]'" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_and_everything_is_kept(endpoint: EmbeddedClickHouse, how: signal.Signals) -> None:
    client = connect(endpoint)
    client.command("CREATE TABLE t (a UInt64) ENGINE = MergeTree ORDER BY a")
    client.command("INSERT INTO t SELECT number FROM numbers(1000)")
    child = endpoint._child
    assert child is not None
    child.send_signal(how)
    assert child.wait(20) == 0
    endpoint.start()
    assert connect(endpoint).command("SELECT count() FROM t") == 1000


@pytest.mark.long
def test_a_running_query_ends_before_the_endpoint_does(endpoint: EmbeddedClickHouse) -> None:
    answers: list[object] = []
    client = connect(endpoint)
    slow = threading.Thread(target=lambda: answers.append(client.command("SELECT sleep(2)")))
    slow.start()
    await_query(endpoint, "SELECT sleep(2)")
    endpoint.stop()
    slow.join()
    assert answers == [0]


@pytest.mark.long
def test_a_query_without_end_does_not_keep_it(endpoint: EmbeddedClickHouse) -> None:
    client = connect(endpoint, query_retries=0)

    query = "SELECT max(sipHash64(number)) FROM numbers(1000000000000)"

    def endless() -> None:
        with pytest.raises((DatabaseError, OperationalError)):
            client.command(query)

    forever = threading.Thread(target=endless)
    forever.start()
    await_query(endpoint, query)
    child = endpoint._child
    assert child is not None
    child.terminate()
    assert child.wait(19) == 0
    forever.join()


@pytest.mark.long
def test_sigkill_loses_no_committed_insert_and_no_token(endpoint: EmbeddedClickHouse) -> None:
    client = connect(endpoint)
    client.command(
        "CREATE TABLE t (a UInt64) ENGINE = MergeTree ORDER BY a SETTINGS non_replicated_deduplication_window = 1000"
    )
    acknowledged: list[int] = []

    def work() -> None:
        for chunk in range(100_000):
            try:
                client.insert(
                    "t", [[chunk]] * 100, column_names=["a"], settings={"insert_deduplication_token": str(chunk)}
                )
            except (DatabaseError, OperationalError):
                return
            acknowledged.append(chunk)

    writer = threading.Thread(target=work)
    writer.start()
    deadline = time.monotonic() + 60
    while len(acknowledged) < 20:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    endpoint.kill()
    writer.join()
    endpoint.start()
    client = connect(endpoint)
    stored = {row[0]: row[1] for row in client.query("SELECT a, count() FROM t GROUP BY a").result_rows}
    assert set(acknowledged) <= set(stored)
    assert set(stored.values()) == {100}
    last = acknowledged[-1]  # a retry of what was acknowledged is still known
    client.insert("t", [[last]] * 100, column_names=["a"], settings={"insert_deduplication_token": str(last)})
    assert client.command(f"SELECT count() FROM t WHERE a = {last}") == 100


def test_user_and_password(tmp_path: Path) -> None:
    with EmbeddedClickHouse(tmp_path / "data", user="sink", password="secret word") as endpoint:
        assert connect(endpoint, username="sink", password="secret word").command("SELECT 1") == 1
        for user, password in [("sink", "wrong"), ("default", ""), ("sink", "")]:
            with pytest.raises(DatabaseError) as caught:
                connect(endpoint, username=user, password=password)
            assert caught.value.code == 516
            assert "secret word" not in str(caught.value)
        listed = Path(f"/proc/{endpoint.pid}/cmdline")
        assert not listed.exists() or b"secret word" not in listed.read_bytes()


def test_the_endpoint_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = (
        "import os\nfrom ch_sink.local.clickhouse.launch import EmbeddedClickHouse\n"
        f"endpoint = EmbeddedClickHouse({str(tmp_path / 'data')!r}).start()\n"
        "print(endpoint.pid, flush=True)\nos._exit(9)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    child = int(done.stdout)
    deadline = time.monotonic() + 15
    while Path(f"/proc/{child}").exists() and Path(f"/proc/{child}/cmdline").read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_it_listens_on_loopback_unless_told(endpoint: EmbeddedClickHouse) -> None:
    rows = Path("/proc/net/tcp")
    if not rows.exists():
        pytest.skip("no /proc/net/tcp here to look at")
    sockets = [line.split() for line in rows.read_text().splitlines()[1:]]
    listening = [address for _, address, _, state, *_ in sockets if state == "0A"]
    assert [a for a in listening if a.endswith(f":{endpoint.port:04X}")] == [f"0100007F:{endpoint.port:04X}"]


@pytest.mark.long
def test_memory_does_not_grow_with_bodies_and_results(endpoint: EmbeddedClickHouse) -> None:
    """Four times the bytes, the same memory; tables without storage keep merges out of the figure."""
    client = connect(endpoint)
    client.command("CREATE TABLE t (a UInt64, b String) ENGINE = Null")

    def rows(count: int) -> Iterator[bytes]:
        piece = b"".join(b"%d\tsome text of a usual length, %d\n" % (n, n * n) for n in range(20_000))
        for _ in range(count // 20_000):
            yield piece

    def both(count: int) -> int:
        client.raw_insert("t", ["a", "b"], rows(count), fmt="TSV")
        seen = 0
        with client.raw_stream(
            f"SELECT number, 'some text of a usual length' FROM numbers({count})", fmt="TSV"
        ) as stream:
            while piece := stream.read(1 << 20):
                seen += len(piece)
        return seen

    def peak_of(count: int) -> int:
        done = threading.Event()
        highest = 0

        def watch() -> None:
            nonlocal highest
            while not done.wait(0.02):
                status = Path(f"/proc/{endpoint.pid}/status").read_text()
                highest = max(highest, int(status.split("RssAnon:")[1].split()[0]) >> 10)

        watcher = threading.Thread(target=watch)
        watcher.start()
        assert both(count) > count * 30
        done.set()
        watcher.join()
        return highest

    # Twice: the engine's caches and the allocator's arenas fill up first.
    small = max(peak_of(2_000_000), peak_of(2_000_000))
    # What was held in memory would be held each time; what a busy machine delays is not.
    assert any(peak_of(8_000_000) < small + 150 for _ in range(2)), "megabytes"


def test_nothing_of_the_environment_is_left_in_the_directory(endpoint: EmbeddedClickHouse) -> None:
    client = connect(endpoint)
    client.raw_insert("FUNCTION null('a String')", ["a"], b"x" * 20_000_000 + b"\n", fmt="CSV")
    assert os.listdir(endpoint.path / "ch_sink" / "bodies") == []
