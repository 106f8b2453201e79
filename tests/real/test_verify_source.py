"""``verify`` and ``repair`` against a real PostgreSQL and a real MariaDB; the events are written by hand."""

import gc
import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ch_sink.clickhouse import Client
from ch_sink.config import load_job
from ch_sink.errors import SourceError
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.local.kafka import LocalKafka
from ch_sink.snapshot import DivisibleReader, open_source
from ch_sink.trust import continuous
from ch_sink.trust.subject import Options
from ch_sink.trust.wiring import source_address, subject_of
from tests.real.stand.daemon import Missing
from tests.real.stand.mariadb import MariaDB
from tests.real.stand.postgres import PostgreSQL
from tests.support.hand import Event, mysql, postgres
from tests.support.kafka import fresh_topic, produce, recorded
from tests.support.sink import config_file, inside, run_inline, statuses

ROWS = 60


SERVERS: tuple[Any, ...] = (PostgreSQL, MariaDB)


def only(chosen: type) -> pytest.MarkDecorator:
    """On the other one in the long run."""
    both = [pytest.param(one, id=one.name, marks=() if one is chosen else pytest.mark.long) for one in SERVERS]
    return pytest.mark.parametrize("source", both, indirect=True, scope="module")


@pytest.fixture(scope="module", params=SERVERS, ids=lambda one: one.name)
def source(request: pytest.FixtureRequest) -> Iterator[Any]:
    try:
        server = request.param()
    except Missing as why:
        pytest.skip(f"no {request.param.name}: {why}")
    server.start()
    yield server
    server.stop()


def events(source: Any) -> list[Event]:
    """The snapshot of the table, as the connector would send it without schemas."""
    out = []
    for i in range(ROWS):
        row = {"id": i, "name": None if i % 7 == 0 else f"näme {i}", "price": f"{i}.50", "n": i * 1_000_000_007}
        if source.name == "postgres":
            out.append(postgres("r", {"id": i}, None, row, 1000 + i, 1000 + i))
        else:
            out.append(mysql("r", {"id": i}, None, row, 1000 + i))
    return out


@pytest.fixture
def config(
    tmp_path: Path, source: Any, mock_kafka: LocalKafka, clickhouse: EmbeddedClickHouse, client: Client, database: str
) -> Path:
    name = f"orders_{database}"
    with source.session() as cursor:
        cursor.execute(
            f"CREATE TABLE {name} (id INT PRIMARY KEY, name VARCHAR(40), price NUMERIC(12, 2), n BIGINT NOT NULL)"
        )
        cursor.execute(
            f"INSERT INTO {name} VALUES "
            + ", ".join(
                f"({i}, {'NULL' if i % 7 == 0 else repr(f'näme {i}')}, {i}.50, {i * 1_000_000_007})"
                for i in range(ROWS)
            )
        )
    schema = "public" if source.name == "postgres" else source.database
    topic = f"{fresh_topic('live')}.{schema}.{name}"
    mock_kafka.create_topic(topic, 1)
    produce(mock_kafka, recorded(topic, events(source)), topic)
    scheme = "postgresql" if source.name == "postgres" else "mariadb"
    client.command(
        f"CREATE TABLE {database}.orders (id Int32, name Nullable(String), price Nullable(Decimal(12, 2)), n Int64, "
        "_version UInt128, _is_deleted UInt8) ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY id"
    )
    made = config_file(
        tmp_path, mock_kafka, clickhouse, topic, "orders", database, decimal_handling="string",
        source={"url": f"{scheme}://debezium:debezium@127.0.0.1:{source.port}/{source.database}"},
    )  # fmt: skip
    assert inside("init", made, "--apply").returncode == 0
    run_inline(made)
    return made


def verify(config: Path, *more: str) -> tuple[int, dict[str, Any]]:
    done = inside("verify", config, "--json", "--patience", "2", *more)
    assert done.stdout, done.stderr
    [stream] = json.loads(done.stdout)["streams"]
    return done.returncode, stream


@pytest.mark.sampled(1)
def test_the_source_is_read_and_differences_are_mended(
    config: Path, source: Any, client: Client, database: str
) -> None:
    code, report = verify(config)
    assert (code, report["against"], report["rows"], report["left_out"]) == (0, "source", ROWS, [])
    with source.session() as cursor:
        cursor.execute(f"UPDATE orders_{database} SET price = 7.25 WHERE id = 7")
        cursor.execute(f"UPDATE orders_{database} SET name = NULL WHERE id = 8")
        cursor.execute(f"DELETE FROM orders_{database} WHERE id = 9")
        cursor.execute(f"INSERT INTO orders_{database} VALUES (1000, 'new', 1.00, 5)")
    code, report = verify(config)
    found = {e["key"]["id"]: (e["kind"], e["columns"]) for e in report["examples"]}
    assert code == 1
    assert {key: kind for key, (kind, _) in found.items()} == {
        7: "different",
        8: "different",
        9: "extra",
        1000: "missing",
    }
    assert found[7][1] == {"price": ["7.25", "7.5"]}
    assert found[8][1] == {"name": [None, "näme 8"]}
    done = inside("repair", config, "--apply", "--patience", "2")
    assert done.returncode == 0, done.stderr
    assert verify(config)[0] == 0


@pytest.mark.sampled(1)
def test_rows_that_the_server_would_hide_from_a_reader_are_no_extra_rows(
    config: Path, source: Any, client: Client, database: str
) -> None:
    """PostgreSQL hides rows by a policy, MariaDB by a limit of the server: a repair would delete them here."""
    table = f"orders_{database}"
    reader = f"reader_{database}"
    with source.session() as cursor:
        if source.name == "postgres":
            cursor.execute(f"CREATE ROLE {reader} LOGIN; GRANT SELECT ON {table} TO {reader}")
            cursor.execute(f"ALTER TABLE {table} ENABLE ROW LEVEL SECURITY")
            cursor.execute(f"CREATE POLICY own ON {table} FOR SELECT TO {reader} USING (id < 10)")
        else:
            cursor.execute("SET GLOBAL sql_select_limit = 10")
    try:
        wanted = ("--set", f"source.username={reader}") if source.name == "postgres" else ()
        done = inside("repair", config, "--apply", "--patience", "1", *wanted)
        if source.name == "postgres":
            assert (done.returncode, "row-level security" in done.stderr, "BYPASSRLS" in done.stderr) == (1, True, True)
        else:
            assert done.returncode == 0, done.stderr
    finally:
        if source.name == "mariadb":
            with source.session() as cursor:
                cursor.execute("SET GLOBAL sql_select_limit = DEFAULT")
    assert client.rows(f"SELECT count() AS n FROM {database}.orders FINAL") == [{"n": ROWS}]


@pytest.mark.sampled(1)
def test_rows_that_are_not_committed_are_not_read(config: Path, source: Any, database: str) -> None:
    """A server may be set to show them; they can be rolled back, and no event tells of that."""
    if source.name == "mariadb":
        with source.session() as cursor:
            cursor.execute("SET GLOBAL tx_isolation = 'READ-UNCOMMITTED'")
    try:
        with closing(source.connect()) as writer, writer.cursor() as cursor:
            cursor.execute(f"UPDATE orders_{database} SET n = -1 WHERE id = 7")
            with closing(open_source(source_address(load_job(config).only()))) as reader:
                read = [value for batch in reader.rows(["n"], 100) for (value,) in batch]
            writer.rollback()
    finally:
        if source.name == "mariadb":
            with source.session() as cursor:
                cursor.execute("SET GLOBAL tx_isolation = DEFAULT")
    assert (len(read), "-1" in read) == (ROWS, False)


@pytest.mark.parametrize("source", [pytest.param(MariaDB, id="mariadb")], indirect=True, scope="module")
def test_a_replica_has_no_position_of_the_connectors_log(config: Path, source: Any) -> None:
    with closing(open_source(source_address(load_job(config).only()))) as reader, source.session() as cursor:
        assert reader.position() > 0
        cursor.execute("SET GLOBAL read_only = 1")
        try:
            assert reader.position() == 0
        finally:
            cursor.execute("SET GLOBAL read_only = 0")


@pytest.mark.sampled(1)
def test_floats_have_all_their_digits(config: Path, source: Any, database: str) -> None:
    name, numbers = f"floats_{database}", [16777217.0, 3.14159265, 1.17549435e-38, 3.402823466e38, 9999.999]
    with source.session() as cursor:
        kind = "REAL" if source.name == "postgres" else "FLOAT"
        cursor.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, n {kind})")
        cursor.execute(f"INSERT INTO {name} VALUES (9, NULL), {', '.join(map(str, enumerate(numbers)))}")
    address = replace(source_address(load_job(config).only()), table=name)
    with closing(open_source(address)) as reader:
        read = {int(str(key)): value for batch in reader.rows(["id", "n"], 100) for key, value in batch}
    assert read.pop(9) is None
    assert [np.float32(str(read[n])) for n in range(len(numbers))] == [np.float32(number) for number in numbers]


@pytest.mark.sampled(1)
def test_a_column_has_the_type_that_the_connector_takes_it_for(config: Path, source: Any, database: str) -> None:
    """A domain that of what it restricts, an extension's type its bare name; a number no zeros that fill it up."""
    name = f"kinds_{database}"
    with source.session() as cursor:
        if source.name == "postgres":
            cursor.execute(f"CREATE SCHEMA {name}; CREATE EXTENSION hstore SCHEMA {name}")
            cursor.execute(f"CREATE DOMAIN flags_{name} AS bit(12); CREATE DOMAIN more_{name} AS flags_{name}")
            cursor.execute("CREATE DOMAIN year AS INT; CREATE TYPE image AS ENUM ('x')")
            cursor.execute(
                f"CREATE TABLE {name} (id year, a more_{name}, b {name}.hstore, c numeric(4,1)[], e image, f image[])"
            )
            cursor.execute(f"INSERT INTO {name} VALUES (1, B'000000000011', 'a=>1', '{{1.5}}')")
        else:
            cursor.execute(f"CREATE TABLE {name} (id INT, a INT(6) ZEROFILL, b DECIMAL(8,2) ZEROFILL, c INT UNSIGNED)")
            cursor.execute(f"INSERT INTO {name} VALUES (1, 42, 5.5, 7)")
    address = replace(source_address(load_job(config).only()), table=name)
    with closing(open_source(address)) as reader:
        kinds = reader.columns()
        [row] = [row for batch in reader.rows(["a", "b", "c"], 100) for row in batch]
    if source.name == "postgres":
        own = {"e": "type image", "f": "type image[]"}
        assert kinds == {"id": "integer", "a": "bit(12)", "b": "hstore", "c": "numeric(4,1)[]"} | own
        assert row == ("000000000011", '"a"=>"1"', "{1.5}")
    else:
        assert row == ("42", "5.50", "7")


def _ends(source: Any, reader: Any) -> None:
    """The server ends the reader's connection."""
    with source.session() as cursor:
        if source.name == "postgres":
            cursor.execute(f"SELECT pg_terminate_backend({reader._connection.info.backend_pid})")
        else:
            cursor.execute(f"KILL CONNECTION {reader._connection.thread_id()}")


@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_server_that_dies_while_it_is_read_is_an_error_with_a_next_step(
    config: Path, source: Any, database: str
) -> None:
    name = f"large_{database}"
    with source.session() as cursor:
        cursor.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY, text VARCHAR(2000))")
        rows = ", ".join(f"({i}, repeat('x', 1900))" for i in range(8_000))
        cursor.execute(f"INSERT INTO {name} VALUES {rows}")
    address = replace(source_address(load_job(config).only()), table=name)
    with closing(open_source(address)) as reader:
        batches = reader.rows(["id", "text"], 100)
        next(batches)
        _ends(source, reader)
        with pytest.raises(SourceError, match="cannot be read"):
            list(batches)
    with closing(open_source(address)) as reader:
        batches = reader.rows(["id", "text"], 100)
        next(batches)
        batches.close()  # type: ignore[attr-defined]
    gc.collect()


@pytest.mark.long
@only(PostgreSQL)
def test_several_processes_read_every_row_once(config: Path, source: Any, database: str) -> None:
    with source.session() as cursor:
        cursor.execute(f"DELETE FROM orders_{database} WHERE id >= 5")
        rows = ", ".join(f"({i}, 'a longer name for {i}', 1, 2)" for i in range(1_000, 7_000))
        cursor.execute(f"INSERT INTO orders_{database} VALUES {rows}")
    code, report = verify(config, "--parallel", "2")
    assert code == 1
    # Keys 5 to 59 are in the table only, the new rows in the source only.
    assert (report["missing"], report["extra"], report["different"]) == (6_000, ROWS - 5, 0)
    with closing(open_source(source_address(load_job(config).only()))) as reader:
        assert isinstance(reader, DivisibleReader)
        parts = reader.parts(4)
        assert len(parts) == 4
        with closing(open_source(source_address(load_job(config).only()))) as other:
            assert isinstance(other, DivisibleReader)
            sizes = [sum(map(len, other.part(part, ["id"], 500))) for part in parts[:1]]
    assert 0 < sizes[0] < 6_005


@pytest.mark.long
@only(MariaDB)
def test_part_after_part_is_compared_and_what_it_came_to_is_shown(
    config: Path, source: Any, client: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(continuous, "PART", 20)
    bounds = continuous.part_bounds(subject_of(load_job(config).only()), Options(against="source"))
    assert [b and (b[0] is None, b[1] is None) for b in bounds] == [(True, False), (False, False), (False, True)]
    command = ("verify", config, "--continuous", "--rounds", "1", "--load", "100%", "--patience", "1", "--json")
    done = inside(*command)
    [found] = json.loads(done.stdout)["streams"]
    assert (done.returncode, found["rows"], found["differences"]) == (0, ROWS, 0), done.stderr
    upto = found["equal_up_to"]
    assert upto
    with source.session() as cursor:
        cursor.execute(f"UPDATE orders_{database} SET n = n + 1 WHERE id = 7")
        cursor.execute(f"DELETE FROM orders_{database} WHERE id = 50")
    done = inside(*command)
    [found] = json.loads(done.stdout)["streams"]
    assert (done.returncode, found["different"], found["extra"], found["equal_up_to"]) == (1, 1, 1, upto)
    assert {(e["key"]["id"], e["kind"]) for e in found["examples"]} == {(7, "different"), (50, "extra")}
    [shown] = statuses([config])
    assert shown["compared"] | {"stream": found["stream"], "table": found["table"]} == found
    assert shown["stream"] == found["stream"]
    assert "2 differences from its source at" in inside("status", config).stdout


def _address(source: Any, of_postgres: str, of_mysql: str) -> str:
    """The server, which has no certificate, with options that ask for one."""
    scheme, options = ("postgresql", of_postgres) if source.name == "postgres" else ("mariadb", of_mysql)
    return f"{scheme}://debezium:debezium@127.0.0.1:{source.port}/{source.database}{options}"


@pytest.mark.long
def test_what_is_wrong_with_a_source_is_said(config: Path, source: Any, database: str) -> None:
    for setting, said in (
        ("source.table=nowhere", "cannot be described"),
        ("source.password=wrong", "refuses the login" if source.name == "mariadb" else ""),
        (f"source.url={_address(source, '?sslmode=require', '?ssl_ca=/nowhere')}", "refuses the login"),
        ("source.url=postgresql://127.0.0.1:1/shop", "refuses the login"),
        ("source.url=file:///x", "must be the address of a database"),
    ):
        if said:
            done = inside("verify", config, "--set", setting)
            assert done.returncode in (1, 2)
            assert said in done.stderr, setting
            assert "debezium:debezium" not in done.stderr
    with source.session() as cursor:
        cursor.execute(f"CREATE TABLE other_{database} (a INT)")
    done = inside("verify", config, "--set", f"source.table=other_{database}")
    assert "has no column that gives the key column 'id'" in done.stderr
    assert "what the user may read of it; it sees the columns a." in done.stderr
