"""What an open stream's table is, and how it changes."""

import pytest

from ch_sink.clickhouse import Client, Evolution, detect
from ch_sink.config import Config
from ch_sink.memory import MemoryLedger
from ch_sink.model.change import UnknownColumn
from ch_sink.model.policy import policy_of
from ch_sink.pipeline.barrier import Barrier
from ch_sink.stream.open_stream import SchemaChanges, fingerprint
from ch_sink.table.model import TargetTable
from ch_sink.types.column import Column
from ch_sink.types.connect import Field, RowSchema, SourceType
from ch_sink.wiring.streams import stream_settings
from tests.support.decoding import replacing
from tests.support.stream import make_table

COLUMNS = (Column("id", "Int32"), Column("name", "String"))


def mark(table: str = "String", **more: object) -> str:
    """The fingerprint under which a job of this configuration plans its ranges."""
    place = {"url": "http://h:8123", "table": "t"}
    given = {"kafka": {"topic": "t", "bootstrap.servers": "h:1"}, "clickhouse": place, **more}
    settings = stream_settings(Config.model_validate(given))
    columns = (COLUMNS[0], Column("name", table))
    return fingerprint(settings.policy, replacing(columns, ("id",)), settings.source_table)


def test_a_setting_that_decides_nothing_about_rows_changes_nothing() -> None:
    assert mark() == mark(chunk_offsets=7)


@pytest.mark.parametrize(
    "changed",
    [{"source_table": "shop.orders"}, {"out_of_range": "clamp"}, {"table": "LowCardinality(String)"}],
    ids=lambda changed: next(iter(changed)),
)
def test_whatever_gives_other_rows_of_the_same_range_changes_it(changed: dict[str, str]) -> None:
    assert mark(**changed) != mark()


KEY = Field("id", SourceType("int64", optional=False))
BARRIER = Barrier("new_columns", 7, (UnknownColumn("extra", 7, "Nullable(Int64)"),), key=("id",))


class Died(Exception):
    """The job died here."""


def schema_changes(client: Client, database: str, ledger: MemoryLedger) -> SchemaChanges:
    ledger.claim("run")
    return SchemaChanges(Evolution(client, database, "t", policy_of()), ledger)


def made(client: Client, database: str, engine: str) -> TargetTable:
    schema = RowSchema((KEY, Field("v", SourceType("string"))), (KEY,))
    return make_table(client, database, "t", schema, engine=engine, policy=policy_of())


def shown(client: Client, database: str) -> list[str]:
    return [str(r["name"]) for r in client.rows(f"DESCRIBE TABLE {database}.t_current")]


@pytest.mark.parametrize("engine", ["replacing", "append"])
def test_a_job_killed_between_the_column_and_its_view_leaves_the_view_to_the_next(
    client: Client, database: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = MemoryLedger("s")
    table = made(client, database, engine)

    def dies(*_: object) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(Evolution, "_recreate_views", dies)
        with pytest.raises(Died):
            schema_changes(client, database, ledger).carry_out(table, [BARRIER])
    table = detect(client, database, "t", policy_of())
    assert "extra" in {c.name for c in table.columns}
    assert shown(client, database) == ["id", "v"]
    schema_changes(client, database, ledger).finish(table)
    assert shown(client, database) == ["id", "v", "extra"]


def test_a_view_is_left_alone_where_nothing_was_begun(client: Client, database: str) -> None:
    ledger = MemoryLedger("s")
    table = schema_changes(client, database, ledger).carry_out(made(client, database, "replacing"), [BARRIER])
    assert shown(client, database) == ["id", "v", "extra"]
    client.command(f"CREATE OR REPLACE VIEW {database}.t_current AS SELECT id FROM {database}.t FINAL")
    assert schema_changes(client, database, ledger).finish(table) == table
    assert shown(client, database) == ["id"]


@pytest.mark.parametrize(
    "altered",
    [
        "MODIFY COLUMN v Nullable(Int64)",
        "ADD COLUMN extra Nullable(String) AFTER v",
        "DROP COLUMN w",
        "RENAME COLUMN w TO renamed",
    ],
)
@pytest.mark.parametrize("engine", ["replacing", "append"])
def test_views_follow_a_table_that_was_altered_by_hand(
    client: Client, database: str, engine: str, altered: str
) -> None:
    text = SourceType("string", optional=True)
    schema = RowSchema((KEY, Field("v", SourceType("int16")), Field("w", text)), (KEY,))
    make_table(client, database, "t", schema, engine=engine, policy=policy_of())
    client.command(f"ALTER TABLE {database}.t {altered}")
    table = schema_changes(client, database, MemoryLedger("s")).finish(detect(client, database, "t", policy_of()))
    stored = {c.name: c.type for c in table.stored_columns}
    views = ["t_current", "t_history"] if engine == "append" else ["t_current"]
    for view in views:
        described = {r["name"]: r["type"] for r in client.rows(f"DESCRIBE TABLE {database}.{view}")}
        assert {n: k for n, k in described.items() if n not in ("valid_from", "valid_to", "_version", "_op")} == stored
    if engine == "append":
        assert client.rows(f"SELECT {', '.join(stored)} FROM {database}.t_at_version(version = 1)") == []
        assert client.rows(f"SELECT {', '.join(stored)} FROM {database}.t_at(at = '2026-01-01 00:00:00')") == []


def test_a_view_that_fits_is_not_created_again(client: Client, database: str) -> None:
    made(client, database, "append")
    looked = "SELECT name, toString(uuid) AS id FROM system.tables WHERE database = {d:String} ORDER BY name"
    before = client.rows(looked, {"d": database})
    schema_changes(client, database, MemoryLedger("s")).finish(detect(client, database, "t", policy_of()))
    assert client.rows(looked, {"d": database}) == before
    assert len(before) > 4


def test_a_type_that_another_stream_has_widened_further_stays(client: Client, database: str) -> None:
    schema = RowSchema((KEY, Field("n", SourceType("int16"))), (KEY,))
    stale = make_table(client, database, "t", schema, engine="replacing", policy=policy_of())
    client.command(f"ALTER TABLE {database}.t MODIFY COLUMN n Nullable(Int64)")
    grown = UnknownColumn("n", 7, "Nullable(Int32)", comment=SourceType("int32").to_comment(), change="widen")
    table = schema_changes(client, database, MemoryLedger("s")).carry_out(
        stale, [Barrier("new_columns", 7, (grown,), key=("id",))]
    )
    assert [c.type for c in table.columns if c.name == "n"] == ["Nullable(Int64)"]
