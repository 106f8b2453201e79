"""Changes that are under way during a resync from the source, and that leave out a value of a row that is gone."""

from typing import Any

import pytest

from ch_sink.clickhouse import Client
from ch_sink.errors import StreamFailed
from ch_sink.model.policy import policy_of
from ch_sink.trust.resync import resynced
from tests.support.hand import OWN, PLACEHOLDER, Event, key, key_change, postgres, row
from tests.support.hand_commands import Hand, each_of, made
from tests.support.hand_steps import Rows

pytestmark = pytest.mark.integration


def change(op: str, id_: int, after: dict[str, Any] | None, position: int) -> Event:
    return postgres(op, key(id_), None, after, position - 5, position)


FIRST = [change("c", 3, row(3, "x"), 100), change("c", 6, row(6, "y"), 200)]
MOVED = [
    change("d", 3, None, 300),
    *key_change(change("d", 6, None, 400), change("c", 3, row(3, PLACEHOLDER), 400)),
]
"""Row 6 takes the key of row 3, and its value is not in the event."""


def applied(client: Client, database: str, engine: str, later: list[Event]) -> Hand:
    policy = policy_of(on_bad_record="dead_letter", version_strategy="kafka_offset")
    it = made(client, database, OWN[engine], policy, [FIRST + later])
    it.read((0, 2))
    return it


@each_of("engine", [*OWN], "replacing", "collapsing")
def test_a_new_table_that_would_lack_a_moved_row_is_not_exchanged(client: Client, database: str, engine: str) -> None:
    it = applied(client, database, engine, MOVED)
    it.source = Rows([(3, "y")])
    with pytest.raises(StreamFailed, match="the new table lacks 1 row: the change at offset 5 of partition 0"):
        resynced(it.refill, apply=True, against="source")
    assert it.view() == [(3, "x"), (6, "y")]
    it.read_all()
    resynced(it.refill, apply=True, against="source")
    assert it.view() == [(3, "y")]


def test_a_row_that_is_deleted_after_its_update_needs_no_value(client: Client, database: str) -> None:
    gone = [change("u", 3, row(3, PLACEHOLDER), 300), change("d", 3, None, 400)]
    it = applied(client, database, "replacing", gone)
    it.source = Rows([(6, "y")])
    resynced(it.refill, apply=True, against="source")
    it.read_all()
    assert it.view() == [(6, "y")]
