"""The same offsets give other rows than before: another setting, an altered table. None of them may be dropped."""

from collections.abc import Sequence
from typing import Any

import pytest

from ch_sink.errors import ClickHouseError
from ch_sink.model.policy import policy_of
from ch_sink.order import State
from ch_sink.pipeline.target import Target
from ch_sink.ports import DeadLetter
from tests.support.hand_tables import Make, insert

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
    broken: Any = Broken()
    fed.sink(0).dead_letters = broken
    with pytest.raises(ClickHouseError):
        fed.feed(EVENTS)
    assert fed.view() == [(1, "a", 1)]
    fed.policy = policy_of(out_of_range="clamp")
    fed.target = Target.of(fed.table, fed.policy)
    fed.again(0, 0, 2, State())
    assert fed.view() == [(1, "a", 1), (2, "b", 127)]


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
