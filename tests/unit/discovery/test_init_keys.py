"""What ``init`` makes of a topic's key: tables that cannot keep its rows apart are refused, views show rows by it."""

from dataclasses import replace
from typing import Any

import pytest

from ch_sink.clickhouse import Client, detect, execute, shown_views
from ch_sink.discovery import findings
from ch_sink.discovery.init_plan import plan_init
from ch_sink.discovery.look import Sampled
from ch_sink.discovery.wiring import VIEWS_LATER, key_columns
from ch_sink.errors import TableError
from ch_sink.model.policy import policy_of
from tests.unit.discovery.test_obstacles import ROW, config, seen

pytestmark = pytest.mark.integration
RECORDS = [(b'{"id":1}', ROW, None)]
TOPIC = seen(RECORDS)
ENGINES = {
    "replacing": "ReplacingMergeTree(_version, _is_deleted)",
    "collapsing": "CollapsingMergeTree(_sign)",
    "append": "MergeTree",
    "versioned": "VersionedCollapsingMergeTree(_sign, _version)",
}


def make(client: Client, database: str, engine: str, order: str) -> dict[str, str]:
    client.command(
        f"CREATE TABLE {database}.t (id Int64, v String, _version UInt128, _is_deleted UInt8, _sign Int8) "
        f"ENGINE = {ENGINES[engine]} ORDER BY {order}"
    )
    return {"url": client.settings.url, "database": database, "table": "t"}


@pytest.mark.parametrize("order", ["v", "tuple()", "intDiv(id, 10)"])
@pytest.mark.parametrize("engine", ["replacing", "collapsing"])
def test_rows_of_two_keys_would_become_one(client: Client, database: str, engine: str, order: str) -> None:
    place = make(client, database, engine, order)
    with pytest.raises(TableError, match="lacks the key column id: the engine would merge") as caught:
        plan_init(config(clickhouse=place), TOPIC, client)
    assert "init.order_by and fill the table again" in str(caught.value.hint)


@pytest.mark.parametrize(("engine", "order"), [("versioned", "id"), ("append", "id, _version"), ("replacing", "id")])
def test_the_key_of_a_topic_without_records_has_none_of_the_sinks_own_columns(
    client: Client, database: str, engine: str, order: str
) -> None:
    """A VersionedCollapsingMergeTree adds its version to the sorting key."""
    place = make(client, database, engine, f"({order})")
    table = detect(client, database, "t", policy_of())
    assert key_columns(config(clickhouse=place), None, table) == ("id",)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_key_column_of_a_table_cannot_be_renamed(client: Client, database: str, engine: str) -> None:
    place = make(client, database, engine, "id")
    columns = {"rename": {"id": "id_x"}}
    with pytest.raises(TableError, match="lacks the key column id_x") as caught:
        plan_init(config(clickhouse=place, columns=columns), seen(RECORDS, columns=columns), client)
    assert "Name a new table" in str(caught.value.hint)


def test_an_append_table_may_be_sorted_by_other_columns(client: Client, database: str) -> None:
    assert plan_init(config(clickhouse=make(client, database, "append", "v")), TOPIC, client).table == "t"


def test_a_table_without_a_key_begins_with_the_first_record(client: Client, database: str) -> None:
    """The delete of a row that was never counted would hide the next equal one."""
    place, topic = make(client, database, "append", "tuple()"), seen([(None, ROW, None)])
    for start, expected in (("latest", ["start"]), ("earliest", [])):
        existing = plan_init(config(clickhouse=place, start=start), topic, client)
        assert [f.title for f in existing.findings if f.level == "fail"] == expected
    with pytest.raises(TableError, match="`start: latest` leaves out what it holds"):
        plan_init(config(start="latest"), topic, None)
    for latest, keyed in (
        (config(start="latest", key_columns=["id"], init={"allow_nullable_key": True}), topic),
        (config(start="latest", init={"allow_nullable_key": True}), TOPIC),
    ):
        assert plan_init(latest, keyed, None).table == "t"


HISTORY = "id Int64, v String, _op String, _sign Int8, _version UInt128"


def views_of_silent_topic(client: Client, place: dict[str, str], recorded: tuple[str, ...] = (), **more: Any) -> str:
    """What ``init`` does for a topic that holds no record: carries it out, and returns its notes."""
    plan = plan_init(config(clickhouse=place, **more), Sampled(None, 0, "no record", recorded=recorded), client)
    for statement in plan.statements:
        if statement.kind == "view":
            client.command(statement.sql)
    return " ".join(plan.notes)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("order", ["(v, id)", "(id, v)", "id", "tuple()"])
def test_the_order_of_a_history_says_nothing_of_its_key(client: Client, database: str, order: str) -> None:
    client.command(f"CREATE TABLE {database}.t ({HISTORY}) ENGINE = MergeTree ORDER BY {order}")
    place = {"url": client.settings.url, "database": database, "table": "t"}
    names = [f"t{end}" for end in ("_current", "_at_version")]
    notes = views_of_silent_topic(client, place)
    assert "nor is its key, so the views that show rows by it are left out. Run `ch_sink init CONFIG" in notes
    assert shown_views(client, database, names) == {}
    for found in findings._views(config(clickhouse=place), client, None, detect(client, database, "t", policy_of())):
        assert (found.level, found.remedy) == ("warn", VIEWS_LATER)
    views_of_silent_topic(client, place, key_columns=["id"])
    assert [view.key for view in shown_views(client, database, names).values()] == [("id",)] * 2
    views_of_silent_topic(client, place, recorded=("v",))
    assert [view.key for view in shown_views(client, database, names).values()] == [("v",)] * 2
    views_of_silent_topic(client, place)
    assert [view.key for view in shown_views(client, database, names).values()] == [("v",)] * 2


@pytest.mark.parametrize(("key", "shown"), [(("id",), "id"), ((), "none")])
def test_a_view_of_another_key_fails_until_init_has_run_again(
    client: Client, database: str, key: tuple[str, ...], shown: str
) -> None:
    client.command(f"CREATE TABLE {database}.t ({HISTORY}) ENGINE = MergeTree ORDER BY (v, id)")
    place = {"url": client.settings.url, "database": database, "table": "t"}
    views_of_silent_topic(client, place, key_columns=["v", "id"])
    table, own = detect(client, database, "t", policy_of()), config(clickhouse=place)
    for level, of in (("ok", ("v", "id")), ("ok", ("id", "v")), ("ok", None), ("fail", key)):
        assert {found.level for found in findings._views(own, client, of, table)} == {level}
    wrong = next(findings._views(own, client, key, table))
    assert wrong.detail.endswith(f"shows rows by the key v, id, the topic's is {shown}")
    assert wrong.remedy == "ch_sink init CONFIG --apply"
    topic = TOPIC if key else seen([(None, ROW, None)])
    for statement in plan_init(own, topic, client).statements:
        if statement.kind == "view":
            client.command(statement.sql)
    assert {found.level for found in findings._views(own, client, key, table)} == {"ok"}


def test_views_of_a_history_leave_out_a_constant_that_only_sorts_it(client: Client, database: str) -> None:
    """As the job does, which would make views of another key again, and `check` would name them."""
    columns = {"add": {"region": "'eu'"}}
    more: dict[str, Any] = {"engine": "append", "columns": columns, "init": {"order_by": ["region", "id"]}}
    chosen = config(clickhouse={"url": client.settings.url, "database": database, "table": "h"}, **more)
    execute(client, [one.sql for one in plan_init(chosen, seen(RECORDS, **more), client).statements])
    assert detect(client, database, "h", chosen.policy()).sorting_key == ("region", "id")
    shown = shown_views(client, database, ["h_current", "h_history", "h_at"])
    assert {view.key for view in shown.values()} == {("id",)} == {chosen.policy().columns.shown_key(("id",))}
    merged = replace(chosen.policy().columns, source=("region",))
    assert (merged.shown_key(("id",)), merged.shown_key(())) == (("region", "id"), ())
