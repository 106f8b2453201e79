"""Accounts with little: settings of their profiles, and the rights that commands need."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from ch_sink.clickhouse import AnyKeyLookup, ClickHouseWriter, Client, detect
from ch_sink.clickhouse.settings import ClickHouseSettings
from ch_sink.errors import ClickHouseError
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.model.policy import policy_of
from ch_sink.ports import Insert
from ch_sink.trust.key import wanted_key
from ch_sink.trust.life import Reading, biography
from ch_sink.trust.one_key import erased, noted_of
from ch_sink.trust.purge import purged
from ch_sink.trust.repair import repaired
from ch_sink.trust.resync import resynced
from ch_sink.trust.subject import Options
from tests.support.endpoint import settings_for
from tests.support.hand import PLACEHOLDER, Event, delete, insert, key, postgres, row
from tests.support.hand_commands import Hand, each_of, hand
from tests.support.hand_steps import BIG, Rows, WideRows, left_tables, lettered, lose
from tests.support.rights import Limited
from tests.support.sink import ROOT

pytestmark = pytest.mark.integration

USERS = """<clickhouse><profiles><default>{}</default></profiles><quotas><default/></quotas><users><default>
<password></password><networks><ip>::/0</ip></networks><profile>default</profile><quota>default</quota>
</default></users></clickhouse>"""
DIRECTORIES = """<clickhouse><user_directories replace='1'><users_xml><path>{}</path></users_xml></user_directories>
</clickhouse>"""

PROFILES: dict[str, dict[str, str]] = {
    "the first row": {"limit": "1"},
    "all but the first row": {"offset": "1"},
    "nothing for no rows": {"empty_result_for_aggregation_by_empty_set": "1"},
    "null for no rows": {"aggregate_functions_null_for_empty": "1"},
    "types in binary": {"output_format_native_encode_types_in_binary_format": "1"},
    "a query cache": {"use_query_cache": "1"},
    "columns that can be null": {"data_type_default_nullable": "1"},
    "tokens for INSERT SELECT": {"deduplicate_insert_select": "force_enable"},
    "tables that may not be dropped": {"max_table_size_to_drop": "1", "max_partition_size_to_drop": "1"},
}
CUT: dict[str, dict[str, str]] = {
    "sets": {"max_rows_in_set": "1", "set_overflow_mode": "break"},
    "results": {"max_result_rows": "1", "result_overflow_mode": "break"},
    "what is read": {"max_rows_to_read": "1", "read_overflow_mode": "break"},
}


@contextmanager
def user_of(client: Client, profile: dict[str, str]) -> Iterator[Client]:
    """The client of a user whose requests have these settings, unless they say otherwise."""
    user = Client(replace(client.settings, settings=tuple(profile.items())))
    yield user
    user.close()


def change(op: str, id_: int, before: str | None, after: str | None, pos: int) -> Event:
    was, now = (None if v is None else row(id_, v) for v in (before, after))
    return postgres(op, key(id_), was, now, pos, pos)


EVENTS = [
    *(change("c", i, None, v, 100 + i) for i, v in enumerate("abcd", 1)),
    *(change("u", i, None, PLACEHOLDER, 200 + i) for i in (1, 2)),
    change("d", 3, "c", None, 300),
    change("u", 4, "d", "e", 400),
]


@pytest.mark.long
@each_of("profile", PROFILES, "null for no rows")
@each_of("engine", ("replacing", "collapsing"), "collapsing")
def test_a_profile_changes_nothing(client: Client, database: str, engine: str, profile: str) -> None:
    with user_of(client, PROFILES[profile]) as user:
        it = hand(user, database, engine, EVENTS)
        it.read((0, 4), (0, 8))
        it.client = client
        live = [(1, "a"), (2, "b"), (4, "e")]
        assert it.view() == live
        it.client = user
        assert it.verify() == (0, 0, 0)
        lose(it, 1)
        assert it.verify() == (1, 0, 0)
        assert repaired(it.subject, Options(patience=0), apply=True).all_repaired
        it.source = Rows([(1, "a"), (2, "new")])
        assert it.verify_source() == (0, 1, 1)
        assert repaired(it.subject, Options(patience=0, against="source"), apply=True).all_repaired
        resynced(it.refill, apply=True)
        purged(it.subject, it.own, {0: 8}, apply=True, settle=0)
        it.client = client
        assert it.view() == [(1, "a"), (2, "new")]
        assert left_tables(it) == []
        assert not client.rows(f"SELECT name FROM system.tables WHERE database = '{database}' AND name LIKE 't\\_\\_%'")


def test_a_profile_of_the_server_cuts_nothing_off(tmp_path: Path) -> None:
    """Not even the list of settings that the driver reads first."""
    users, config = tmp_path / "users.xml", tmp_path / "ch_sink" / "config.d" / "users.xml"
    users.write_text(USERS.format("<limit>10</limit>"))
    config.parent.mkdir(parents=True)
    config.write_text(DIRECTORIES.format(users))
    server = EmbeddedClickHouse(tmp_path)
    server.start()
    try:
        client = Client(ClickHouseSettings(server.url))
        assert len(client.rows("SELECT number FROM numbers(50)")) == 50
        client.close()
    finally:
        server.stop()


@each_of("profile", CUT)
def test_an_answer_that_a_profile_would_cut_is_an_error(client: Client, database: str, profile: str) -> None:
    """A lookup that finds a part of the rows would leave the others where they are."""
    it = hand(client, database, "collapsing", EVENTS)
    with user_of(client, {**CUT[profile], "max_block_size": "1"}) as user:
        lookup = AnyKeyLookup(user, it.feed.admin.table)
        it.read((0, 4))
        with pytest.raises(ClickHouseError, match=r"(?i)limit"):
            lookup.fetch(pa.table({"id": pa.array(range(1, 5), pa.int64())}))


def test_statements_of_wide_tables_are_longer_than_servers_read_by_default(client: Client) -> None:
    text = f"SELECT length([{',     '.join(['1'] * 60_000)}]) AS n"
    assert client.rows(text) == [{"n": 60_000}]
    assert client.arrow(text)["n"].to_pylist() == [60_000]
    client.command(text)


def test_an_insert_behind_a_fence_is_stored_once_if_the_profile_turns_tokens_off(client: Client, database: str) -> None:
    it = hand(client, database, "collapsing", EVENTS)
    fence: Any = SimpleNamespace(condition="1", query_id="query", check=lambda: None)
    block = pa.table({"id": pa.array([1], pa.int64()), "_sign": pa.array([1], pa.int8())})
    with user_of(client, {"deduplicate_insert_select": "disable"}) as user:
        writer = ClickHouseWriter(user, detect(user, database, "t", policy_of()))
        for _ in range(2):
            writer.write(Insert(block, "rows"), "token", fence=fence)
    assert len(it.stored()) == 1


PAGE = (ROOT / "docs" / "rights.md").read_text(encoding="utf-8")
JOB = "## ClickHouse: a job and the commands beside it"
FILL = "### For `verify`, `repair` and `resync`"
PURGE = "### With `truncate: apply`, and for `purge`"
ERASE = "### For a purge by key"
SOURCE = [(1, "a", 1), (2, "b", 1)]


def granted(heading: str) -> list[str]:
    block = re.search(r"```sql\n(.*?)```", PAGE.partition(f"{heading}\n")[2], re.DOTALL)
    assert block, heading
    lines = block[1].replace("shop.orders", "shop.t").replace(" TO ch_sink", "").splitlines()
    return [line.rstrip(";") for line in lines]


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Limited]:
    made = Limited(tmp_path_factory.mktemp("limited"))
    made.clickhouse.start()
    yield made
    made.clickhouse.stop()


@pytest.fixture
def it(limited: Limited) -> Iterator[Hand]:
    """A stream that has read an insert, one that became a dead letter, and the delete of that row; row 2 is missing."""
    limited.restart(None)
    client = Client(settings_for(limited.clickhouse.url))
    client.command("DROP DATABASE IF EXISTS shop SYNC")
    client.command("CREATE DATABASE shop")
    events = [insert(1, "a", 100, n=1), insert(3, "c", 110, n=BIG), delete(row(3, "c", n=BIG), 120)]
    made = lettered(client, "shop", "replacing", events)
    made.read((0, 2), (0, 3))
    made.source = WideRows(SOURCE)
    yield made
    client.close()


def as_user(limited: Limited, it: Hand, headings: Sequence[str]) -> None:
    """From now on with these rights."""
    it.client.close()
    limited.restart([*(line for heading in headings for line in granted(heading)), "GRANT READ ON FILE"])
    it.client = Client(settings_for(limited.clickhouse.url))


@pytest.mark.long
def test_comparisons_and_fillings(limited: Limited, it: Hand) -> None:
    as_user(limited, it, [JOB, FILL])
    assert it.verify_source() == (1, 0, 0)
    assert repaired(it.subject, Options(patience=0, against="source"), apply=True).all_repaired
    assert it.verify_source() == (0, 0, 0)


@pytest.mark.long
def test_what_needs_no_more_than_a_job(limited: Limited, it: Hand) -> None:
    as_user(limited, it, [JOB])
    s, key = it.subject, {"id": 3}
    noted = noted_of(s, it.own, s.topic.state("t").topic_id)
    wanted = wanted_key(s.client, s.table, key)
    life = biography(Reading.of(s), wanted, noted)
    assert [event.rule for event in life.events] == ["dead letter", "newer"]


@pytest.mark.long
def test_a_new_table(limited: Limited, it: Hand) -> None:
    it.feed.letters_of.settle([(0, 1)], "dropped")
    as_user(limited, it, [JOB, FILL])
    assert resynced(it.refill, apply=True).rows == 2


@pytest.mark.long
def test_removals(limited: Limited, it: Hand) -> None:
    as_user(limited, it, [JOB, PURGE, ERASE])
    done = erased(it.subject, it.own, {"id": 3}, apply=True)
    assert done.rows["shop.t"] == done.rows["shop.ch_sink_dead_letters"] == 1
    assert purged(it.subject, it.own, {0: 3}, apply=True, settle=0).applied
