"""``verify`` and ``repair`` beside live databases, connectors and a running job."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ch_sink.clickhouse import Client
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.trust import continuous
from tests.real.accounts import Planting, account_shapes, delete_some, fill_quiet
from tests.real.conftest import Stand
from tests.real.scenario import JSON, Scenario
from tests.real.shapes import Dialect
from tests.real.sink import Job, caught_up, init_and_check
from tests.real.stand.daemon import Missing
from tests.real.stand.mariadb import MariaDB
from tests.real.stand.postgres import PostgreSQL
from tests.real.writers import Source, Writer, write
from tests.support.sink import inside, statuses

pytestmark = [pytest.mark.long, pytest.mark.timeout(3000)]
RUNS = 50
KEYLESS = "acct_keyless"


@dataclass
class Live:
    """One source whose four tables are carried over while three writers change them."""

    scenario: Scenario
    source: Source
    configs: dict[str, Path]
    job: Job
    writers: list[Writer]

    def quiet(self) -> None:
        """Let the writers end, and the job apply all that they wrote."""
        for writer in self.writers:
            assert writer.end() > 50
        self.scenario.wait_for_the_last_change()
        caught_up(self.job, list(self.configs.values()), 300)


@pytest.fixture(scope="module", params=[PostgreSQL, MariaDB], ids=["postgres", "mariadb"])
def live(
    request: pytest.FixtureRequest,
    stand: Stand,
    clickhouse: EmbeddedClickHouse,
    client: Client,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Live]:
    try:
        source: Source = request.param()
    except Missing as why:
        pytest.skip(f"no {request.param.name}: {why}")
    source.start()
    folder = tmp_path_factory.mktemp("verify")
    scenario = Scenario(
        folder, stand.kafka, stand.connect, clickhouse, client, [source], {"json": JSON}, "verify", account_shapes
    )
    mine = account_shapes(source.name)
    with source.session() as cursor:
        for shape in mine:
            for statement in shape.ddl[source.name]:
                cursor.execute(statement)
        cursor.execute("CREATE TABLE mark (id INT NOT NULL PRIMARY KEY)")
    fill_quiet(source)
    write(source, Random("verify"), Dialect(source.name), 60, mine)
    writers = [Writer(source, f"verify {n}", 20, mine) for n in range(3)]
    job = None
    try:
        scenario.make_connectors()
        scheme = "postgresql" if source.name == "postgres" else "mariadb"
        address = f"{scheme}://debezium:debezium@127.0.0.1:{source.port}/{source.database}"
        paths = scenario.configs(source={"url": address})
        scenario.wait_for_snapshots()
        for path in paths:
            init_and_check(path)
        job = Job(paths, folder / "job.log")
        delete_some(source)
        for writer in writers:
            writer.start()
        configs = {stream.shape.name: path for stream, path in zip(scenario.streams, paths, strict=True)}
        yield Live(scenario, source, configs, job, writers)
    finally:
        for writer in writers:
            writer.over.set()
        if job is not None:
            job.end()
        for writer in writers:
            if writer.is_alive():
                writer.join(30)
        stand.connect.remove(f"verify_{source.name}_json")
        source.stop()


def verify(path: Path, *more: str) -> dict[str, Any]:
    done = inside("verify", path, "--json", "--examples", "1000", *more)
    assert done.stdout, done.stderr
    [stream] = json.loads(done.stdout)["streams"]
    assert (done.returncode == 0) is stream["equal"]
    return dict(stream)


def found(report: dict[str, Any], table: str) -> Any:
    if table == KEYLESS:
        return Counter((int(e["key"]["id"]), e["kind"]) for e in report["examples"])
    return {
        int(e["key"]["id"]): (e["kind"], tuple(e["columns"]) if e["kind"] == "different" else ())
        for e in report["examples"]
    }


def wanted(planting: Planting) -> Any:
    if planting.table != KEYLESS:
        return planting.wanted
    halves = {"different": ("missing", "extra"), "missing": ("missing",), "extra": ("extra",)}
    return Counter((id_, kind) for id_, (one, _) in planting.wanted.items() for kind in halves[one])


def test_nothing_differs_while_writers_write(live: Live) -> None:
    caught_up_once(live)
    judged = Counter[str]()
    names = list(live.configs)
    for run in range(RUNS):
        table = names[run % len(names)]
        report = verify(live.configs[table])
        assert report["equal"], (run, table, report)
        judged += Counter(runs=1, rows=report["rows"], changing=report["changing"])
    print(f"\n{live.source.name}: {dict(judged)}, {sum(w.done for w in live.writers)} transactions meanwhile")  # noqa: T201


def test_continuous_comparison_sees_what_goes_wrong_and_nothing_else_while_writers_write(
    live: Live, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three rounds of four parts beside the job, then a row goes wrong, and is mended, all while others change."""
    caught_up_once(live)
    path, table = live.configs["acct_replacing"], f"verify_{live.source.name}_json.acct_replacing"

    def rounds(number: int) -> dict[str, Any]:
        done = inside("verify", path, "--continuous", "--rounds", str(number), "--load", "100%", "--json")
        assert done.stdout, done.stderr
        [stream] = json.loads(done.stdout)["streams"]
        assert (done.returncode == 0) is (stream["differences"] == 0), done.stderr
        return dict(stream)

    [stored] = client.rows(f"SELECT count() AS n FROM {table}")
    monkeypatch.setattr(continuous, "PART", int(stored["n"]) // 4 + 1)
    found = rounds(3)
    assert (found["differences"], found["rows"] > 100) == (0, True), found
    upto = found["equal_up_to"]
    client.command(f"INSERT INTO {table} SELECT * REPLACE(id + 90000000 AS id) FROM {table} FINAL LIMIT 1")
    found = rounds(1)
    assert (found["extra"], found["differences"], found["equal_up_to"]) == (1, 1, upto), found
    [shown] = statuses([path])
    assert shown["compared"]["differences"] == 1
    assert inside("repair", path, "--apply").returncode == 0
    found = rounds(1)
    assert (found["differences"], found["equal_up_to"] > upto) == (0, True), found


def test_what_is_planted_is_found_with_its_column_and_mended(live: Live, client: Client) -> None:
    caught_up_once(live)
    names = list(live.configs)
    plantings = [Planting(client, f"verify_{live.source.name}_json", table) for table in names]
    for planting in plantings:
        planting.plant()
    assert sum(len(p.wanted) for p in plantings) == 1000
    for planting in plantings:
        report = verify(live.configs[planting.table])
        assert found(report, planting.table) == wanted(planting), planting.table
        assert not any(report["left_out"])
    done = inside("repair", live.configs["acct_replacing"], "--apply", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert verify(live.configs["acct_replacing"])["equal"]
    live.quiet()
    assert verify(live.configs["acct_replacing"])["equal"]
    assert live.job.end() == 130
    for table in names[1:]:
        command = ("resync", "--against", "topic") if table == KEYLESS else ("repair",)
        done = inside(*command, live.configs[table], "--apply", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
    for table in names:
        report = verify(live.configs[table], "--patience", "1")
        assert report["equal"], report
        assert report["changing"] == 0
    for stream in live.scenario.streams:
        live.scenario.truth[live.source.name, stream.shape.name] = live.source.table(stream.shape.name)
        assert live.scenario.differences(stream) == []


def caught_up_once(live: Live) -> None:
    """Until each table has had the snapshot: `verify` of a stream that is far behind waits for nothing else."""
    deadline = time.monotonic() + 300
    select = "SELECT count() AS n FROM verify_{source}_json.{table}"
    while True:
        counts = [
            int(live.scenario.client.rows(select.format(source=live.source.name, table=table))[0]["n"])
            for table in live.configs
        ]
        if min(counts) > 3_000:
            return
        assert live.job.lives(), live.job.tail()
        assert time.monotonic() < deadline, f"{counts}\n{live.job.tail()}"
        time.sleep(1)
