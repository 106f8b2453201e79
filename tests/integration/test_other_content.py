"""The same offsets give other rows than before: another setting, an altered table. None of them may be dropped."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from ch_sink.clickhouse import Client
from ch_sink.errors import ClickHouseError
from ch_sink.model.policy import policy_of
from ch_sink.order import State
from ch_sink.pipeline.target import Target
from ch_sink.ports import DeadLetter, DeadLetters
from ch_sink.stream import open_stream
from tests.support.hand import Make, insert
from tests.support.kills import Kill
from tests.support.local_runner import LocalBatch
from tests.support.takeover import Takeover

pytestmark = pytest.mark.integration

EVENTS = [insert(1, "a", 100, n=1), insert(2, "b", 110, n=1000)]
each = pytest.mark.parametrize("engine", ["replacing", "sign", "collapsing", "versioned"])


class Broken:
    """Dead letters that cannot be stored."""

    def put(self, letters: Sequence[DeadLetter], token: str) -> None:
        raise ClickHouseError("no such table")

    def failed(self, partition: int, first: int, end: int) -> Sequence[int]:
        return ()


@each
def test_a_setting_that_mends_a_record_after_its_chunk_was_stored_without_it(make: Make, engine: str) -> None:
    fed = make(engine, more="n Int8", policy=policy_of(out_of_range="fail"))
    letters, broken = fed.letters, Broken()
    fed.letters = cast(DeadLetters, broken)
    with pytest.raises(ClickHouseError):
        fed.feed(EVENTS)
    fed.letters = letters
    assert fed.view() == [(1, "a", 1)]
    fed.policy = policy_of(out_of_range="clamp")
    fed.target = Target.of(fed.table, fed.policy)
    fed.again(0, 0, 2, State())
    assert fed.view() == [(1, "a", 1), (2, "b", 127)]


@pytest.mark.sampled(2)
@each
def test_a_rewind_after_a_column_was_widened(make: Make, engine: str) -> None:
    fed = make(engine, more="n Int8", policy=policy_of(out_of_range="fail"))
    fed.feed(EVENTS)
    assert fed.view() == [(1, "a", 1)]
    fed.client.command(f"ALTER TABLE {fed.name} MODIFY COLUMN n Int32")
    log, attempt = fed.log, fed.attempt
    fed.look_again()
    fed.log, fed.attempt = log, attempt
    fed.again(0, 0, 2, State())
    assert fed.view() == [(1, "a", 1), (2, "b", 1000)]


@each
def test_the_same_content_is_still_stored_once(make: Make, engine: str) -> None:
    fed = make(engine, more="n Int32")
    fed.client.command(f"SYSTEM STOP MERGES {fed.name}")
    for _ in range(2):
        fed.feed(EVENTS) if not fed.log else fed.again(0, 0, 2, State())
    assert fed.query("SELECT count() FROM {t}") == [(2,)]


@pytest.fixture
def append(client: Client, database: str, own_tables: str) -> Takeover:
    """A stream that has applied one record, so that its ledger knows the key."""
    policy = policy_of(out_of_range="fail")
    events = [insert(0, "z", 90, n=0), *EVENTS]
    made = Takeover(client, database, own_tables, "append", {0: events}, more="n Int8", policy=policy)
    earlier = made.job()
    earlier.run([LocalBatch({0: (0, 1)})])
    earlier.stop()
    return made


def rows_of(made: Takeover) -> list[dict[str, Any]]:
    return made.client.rows(f"SELECT id, n, _op FROM {made.table} WHERE id > 0 ORDER BY ALL")


@pytest.mark.long
@pytest.mark.parametrize("recorded", [True, False], ids=["its settings are known", "by an earlier version"])
def test_append_stores_each_change_once_when_a_setting_changes_in_mid_batch(
    append: Takeover, monkeypatch: pytest.MonkeyPatch, recorded: bool
) -> None:
    if not recorded:
        monkeypatch.setattr(open_stream, "fingerprint", lambda *_: "")
    append.run_killed(Kill("before dead letters"))
    monkeypatch.undo()
    assert [r["id"] for r in rows_of(append)] == [1]
    append.policy = policy_of(out_of_range="clamp")
    assert append.run_all(append.job()) is None
    assert rows_of(append) == [{"id": 1, "n": 1, "_op": "c"}, {"id": 2, "n": 127, "_op": "c"}]


@pytest.mark.long
def test_append_stores_each_change_once_when_the_table_forgets_tokens_and_the_version_changes(
    append: Takeover, monkeypatch: pytest.MonkeyPatch
) -> None:
    append.policy = policy_of(out_of_range="clamp")
    append.run_killed(Kill("before results"))
    append.client.command(f"ALTER TABLE {append.table} MODIFY SETTING non_replicated_deduplication_window = 0")
    monkeypatch.setattr(open_stream, "fingerprint", lambda *_: "another version")
    assert append.run_all(append.job()) is None
    assert [r["id"] for r in rows_of(append)] == [1, 2]


@pytest.mark.long
def test_settings_that_come_back_in_mid_batch_win_over_what_was_stored_in_between(
    client: Client, database: str, own_tables: str
) -> None:
    events = [insert(1, "a", 100, n=1000), insert(2, "b", 110, n=1000)]
    made = Takeover(client, database, own_tables, "replacing", {0: events}, more="n Nullable(Int8)")
    first, between = policy_of(out_of_range="clamp"), policy_of(out_of_range="null")
    for policy, stored in ((first, 127), (between, None)):
        made.policy = policy
        made.run_killed(Kill("before results"))
        assert [(r["id"], r["n"]) for r in made.client.rows(f"SELECT id, n FROM {made.table} FINAL ORDER BY id")] == [
            (1, stored),
            (2, stored),
        ]
    made.policy = first
    assert made.run_all(made.job()) is None
    assert made.view() == [(1, "a", 127), (2, "b", 127)]
