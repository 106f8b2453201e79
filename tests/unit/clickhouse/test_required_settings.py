"""Users who may not change the settings that inserts depend on."""

from collections.abc import Iterator
from typing import Any

import pytest

from ch_sink.clickhouse import ClickHouseTableAdmin, Client, detect, server_facts
from ch_sink.errors import AccessDenied
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.model.policy import policy_of
from ch_sink.table.checks import check_table
from tests.support.endpoint import settings_for

pytestmark = pytest.mark.integration

FIXED = {"insert_deduplication_token": "", "async_insert": "1", "transform_null_in": "0", "final": "1"}
RIGHT = {"async_insert": "0", "insert_deduplicate": "1", "max_threads": "8", "final": "0"}


@pytest.fixture
def bound(clickhouse: EmbeddedClickHouse) -> Iterator[Client]:
    """A client of its own, whose user's profile the tests change as the server would report it."""
    one = Client(settings_for(clickhouse.url))
    yield one
    one.close()


def fix(client: Client, name: str, value: str) -> None:
    known: dict[str, Any] = client._driver.server_settings
    known[name] = known[name].__class__(name=name, value=value, readonly=1)


@pytest.fixture
def admin(bound: Client, database: str) -> ClickHouseTableAdmin:
    bound.command(f"CREATE TABLE {database}.t (id UInt64, _version UInt128) ENGINE = MergeTree ORDER BY id")
    return ClickHouseTableAdmin(bound, database, "t", policy_of())


@pytest.mark.parametrize(("name", "value"), FIXED.items())
def test_a_stream_of_such_a_user_does_not_start(
    admin: ClickHouseTableAdmin, bound: Client, name: str, value: str
) -> None:
    admin.detect()
    fix(bound, name, value)
    with pytest.raises(AccessDenied, match=f"may not change the ClickHouse setting {name}") as caught:
        admin.detect()
    assert name in (caught.value.hint or "")
    table = detect(bound, admin.database, "t", policy_of())
    found = check_table(table, ("id",), policy_of().changes, server=server_facts(bound, table))
    assert [(f.level, name in f.detail) for f in found if f.title == "settings"] == [("fail", True)]


@pytest.mark.parametrize(("name", "value"), RIGHT.items())
def test_a_setting_that_is_fixed_at_the_right_value_or_that_nothing_depends_on_is_no_obstacle(
    admin: ClickHouseTableAdmin, bound: Client, name: str, value: str
) -> None:
    fix(bound, name, value)
    admin.detect()
