"""`rehearse` shows what another configuration would give, and touches nothing."""

import random
from dataclasses import replace
from typing import Any

import pytest

from ch_sink.clickhouse import Client
from ch_sink.decode import decoder_for
from ch_sink.errors import StreamFailed
from ch_sink.model.policy import ColumnPolicy, Policy
from ch_sink.table.ddl import create_table
from ch_sink.table.spec import EngineChoice, TableSpec
from ch_sink.trust.rehearse import Other, rehearsed, table_name
from ch_sink.trust.subject import Subject
from tests.support.busy import POLICY, decimal_and_time, feed_of
from tests.support.stream import schema_of
from tests.support.trust import subject_of

pytestmark = pytest.mark.integration
STREAM = "postgres-busy-json_plain"


@pytest.fixture
def live(client: Client, database: str) -> Subject:
    feed = feed_of(client, database, "postgres", "acct", "replacing", first=400)
    feed.run(random.Random(1), longest=2000)
    feed.runner.stop()
    client.command(f"SYSTEM STOP MERGES {database}.acct")  # a merge would change what `traces` counts
    return subject_of(client, database, feed, STREAM, ("id", "k"))


def other(live: Subject, engine: str = "replacing", policy: Policy = POLICY, **types: str) -> Other:
    schema = schema_of(STREAM, "acct", keep=decimal_and_time("acct"))
    spec = TableSpec(database=live.database, table=table_name(live.table), engine=EngineChoice.parse(engine))
    statement = create_table(schema, spec)
    for old, new in types.items():
        assert old in statement
        statement = statement.replace(old, new)
    return Other(
        replace(live.settings, policy=policy), statement, lambda now, want: decoder_for(now, policy, want_before=want)
    )


def traces(live: Subject) -> list[Any]:
    """Everything that a rehearsal must leave as it is."""
    table = live.table.qualified
    [rows] = live.client.rows(f"SELECT count() AS n, sum(cityHash64(*)) AS h FROM {table}")
    tables = live.client.rows(f"SELECT name FROM system.tables WHERE database = '{live.database}' ORDER BY name")
    return [rows, tables, len(live.ledger.history(10_000)), live.ledger.progress(live.topic.state("").topic_id)]


SHOWN = {
    "replacing": "ReplacingMergeTree(_version, _is_deleted)",
    "sign-replacing": "ReplacingMergeTree(_version)",
    "collapsing": "CollapsingMergeTree(_sign)",
    "versioned-collapsing": "VersionedCollapsingMergeTree(_sign, _version)",
    "append": "MergeTree",
}


@pytest.mark.long
@pytest.mark.parametrize("engine", SHOWN)
def test_another_engine_gives_the_same_rows_and_nothing_is_touched(live: Subject, engine: str) -> None:
    before = traces(live)
    done = rehearsed(live, other(live, engine))
    assert (done.report.rows > 0, done.report.equal, done.report.dead_letters) == (True, True, 0)
    assert done.equal == (engine == "replacing")
    assert done.engine == (SHOWN[engine], SHOWN["replacing"])
    assert traces(live) == before


def test_other_columns_and_values_are_shown(live: Subject) -> None:
    """A masked column differs in every row that has a value, an excluded one is absent; a failure leaves no table."""
    before = traces(live)
    names = [c.name for c in live.columns if c.name not in ("id", "k")]
    masked = next(c.name for c in live.columns if c.name not in ("id", "k") and "String" in c.type)
    policy = replace(POLICY, columns=ColumnPolicy(mask=((masked, "redact"),)))
    done = rehearsed(live, other(live, policy=policy), examples=3)
    assert set(done.report.columns) == {masked}
    assert (done.report.missing, done.report.extra) == (0, 0)
    assert done.report.different > 0
    assert len(done.report.examples) == 3
    assert traces(live) == before
    assert rehearsed(live, other(live, policy=policy), columns=[n for n in names if n != masked]).report.equal
    with pytest.raises(StreamFailed, match="'nothing'"):
        rehearsed(live, other(live), columns=["nothing"])
    assert traces(live) == before
