"""What only a server has: users and roles of its own, and the statements of init carried out twice."""

from collections.abc import Iterator

import pytest

from ch_sink.clickhouse import ClickHouseSettings, Client, connect, detect, disconnect, execute
from ch_sink.errors import ClickHouseError
from ch_sink.model.policy import policy_of
from ch_sink.table.ddl import init_statements
from ch_sink.table.spec import EngineChoice, TableSpec
from tests.support.endpoint import settings_for
from tests.support.fixtures import topic_of
from tests.support.stream import Feed, make_table, schema_of

STREAM, TABLE = "mariadb-json_schema-kc", "kc"
POLICY = policy_of(on_bad_record="fail")
ENGINES = ("replacing", "sign-replacing", "collapsing", "versioned-collapsing", "append")


@pytest.mark.parametrize("engine", ENGINES)
def test_init_may_be_repeated_and_detection_reads_what_it_made(client: Client, database: str, engine: str) -> None:
    spec = TableSpec(database=database, table=TABLE, engine=EngineChoice.parse(engine))
    statements = [s.sql for s in init_statements(schema_of(STREAM, TABLE), spec)]
    execute(client, statements)
    first = detect(client, database, TABLE, POLICY)
    execute(client, statements)
    assert detect(client, database, TABLE, POLICY) == first
    assert first.engine.family is spec.engine.family
    assert first.sorting_key[:2] == ("id", "k")


@pytest.fixture
def reader(client: Client, server: ClickHouseSettings, database: str) -> Iterator[Client]:
    """A client whose user has the role ``readers_of_<database>`` and may only read."""
    role, user, word = f"readers_of_{database}", f"reader_of_{database}", "only for this test"
    try:
        client.command(f"CREATE ROLE {role}")
    except ClickHouseError as error:
        pytest.skip(f"this server makes no roles: {str(error)[:80]}")
    client.command(f"CREATE USER {user} IDENTIFIED BY '{word}' DEFAULT ROLE {role}")
    client.command(f"GRANT {role} TO {user}")
    client.command(f"GRANT SELECT ON {database}.* TO {role}")
    settings = settings_for(server.url, username=user, password=word)
    yield connect(settings)
    disconnect(settings)
    client.command(f"DROP USER {user}")
    client.command(f"DROP ROLE {role}")


@pytest.mark.parametrize("engine", ["replacing", "sign-replacing"])
def test_a_row_policy_hides_deleted_rows_from_a_role_and_not_from_the_sink(
    client: Client, server: ClickHouseSettings, reader: Client, database: str, engine: str
) -> None:
    target = make_table(
        client,
        database,
        TABLE,
        schema_of(STREAM, TABLE),
        engine=engine,
        policy=POLICY,
        row_policy_roles=(f"readers_of_{database}",),
        row_policy_except=(server.username,),
    )
    Feed(client, database, target, STREAM, topic_of(STREAM, TABLE), POLICY).run()
    client.command(f"OPTIMIZE TABLE {target.qualified} FINAL")
    deleted = {"replacing": "_is_deleted = 1", "sign-replacing": "_sign = -1"}[engine]
    count = f"SELECT count() AS n, countIf({deleted}) AS gone FROM {target.qualified}"
    seen, stored = reader.rows(count)[0], client.rows(count)[0]
    assert stored["gone"] > 0
    assert seen == {"n": stored["n"] - stored["gone"], "gone": 0}
    view = f"SELECT count() AS n FROM {database}.{TABLE}_current"
    assert reader.rows(view) == client.rows(view) == [{"n": seen["n"]}]
