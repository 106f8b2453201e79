"""Comparisons with a topic whose events leave values out: those of rows whose key changes, and those it has lost."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ch_sink.clickhouse import Client
from ch_sink.errors import StreamFailed
from ch_sink.model.policy import policy_of
from ch_sink.testing import MemoryTopic
from ch_sink.trust.repair import repaired
from ch_sink.trust.subject import Options
from tests.support.hand import ENGINES, OWN, PLACEHOLDER, Event, key, key_change, postgres, row
from tests.support.hand_commands import Hand, each_of, hand, made
from tests.support.hand_steps import Rows, lose

pytestmark = pytest.mark.integration

FIRST = postgres("c", key(1), None, row(1, "a"), 10, 20)
GONE, _, MADE = key_change(
    postgres("d", key(1), row(1, None), None, 100, 110), postgres("c", key(2), None, row(2, PLACEHOLDER), 100, 110)
)
LAST = postgres("u", key(2), None, row(2, "c"), 130, 140)


def compacted(it: Hand, *gone: int) -> None:
    """The topic no longer holds these offsets, and begins with its first one."""
    whole = it.feed.records[0]
    kept = [at for at, offset in enumerate(whole.offsets) if int(offset) not in gone]
    it.feed.records[0] = replace(
        whole,
        offsets=whole.offsets[kept],
        timestamps=whole.timestamps[kept],
        keys=[whole.keys[at] for at in kept],
        values=[whole.values[at] for at in kept],
        headers=[whole.headers[at] for at in kept],
    )
    log = it.feed.runner.ports.topics
    assert isinstance(log, MemoryTopic)
    log.partitions = dict(it.feed.records)


@each_of("engine", [*ENGINES, "append"], "replacing", "collapsing")
@pytest.mark.parametrize("parts", [[[FIRST, GONE, MADE, LAST]], [[FIRST, GONE], [MADE, LAST]]], ids=["one", "two"])
def test_a_row_whose_key_changes_while_it_is_compared(
    client: Client, database: str, engine: str, parts: Sequence[Sequence[Event]]
) -> None:
    """The stream has read the first half before; the second one leaves values out. The row changes once more."""
    it = hand(client, database, engine, *parts)
    it.read((0, 2))

    def go_on() -> None:
        it.feed.at = {0: 2, 1: 0}
        it.read((0, 4)) if len(parts) == 1 else it.read((1, 2))

    it.source = Rows([(2, "a")], then=go_on)
    assert it.verify_source() == (0, 0, 0)
    assert it.view() == [(2, "c")]
    assert it.verify() == (0, 0, 0)


@each_of("engine", ENGINES, "replacing")
def test_a_topic_that_has_lost_values_by_compaction_judges_no_difference(
    client: Client, database: str, engine: str
) -> None:
    """A repair would remove a row that is right."""
    stated, left_out = row(5, "e"), row(5, PLACEHOLDER)
    events = [postgres("c", key(5), None, stated, 30, 40), postgres("u", key(5), None, left_out, 50, 60)]
    it = hand(client, database, engine, [FIRST, *events])
    it.read_all()
    assert it.verify() == (0, 0, 0)
    compacted(it, 1)
    for command in (it.verify, lambda: repaired(it.subject, Options(patience=0), apply=True)):
        with pytest.raises(StreamFailed, match="no longer holds the values that 1 record of it leave out"):
            command()
    assert it.view() == [(1, "a"), (5, "e")]
    it.source = Rows([(1, "a"), (5, "e")])
    assert it.verify_source() == (0, 0, 0)


@each_of("engine", ENGINES, "replacing")
def test_a_topic_that_has_lost_the_former_row_by_compaction_judges_no_difference(
    client: Client, database: str, engine: str
) -> None:
    it = hand(client, database, engine, [postgres("c", key(9), None, row(9, "x"), 5, 6), FIRST, GONE, MADE])
    it.read_all()
    assert it.verify() == (0, 0, 0)
    compacted(it, 1, 2)
    with pytest.raises(StreamFailed, match="no longer holds the values that 1 record of it leave out"):
        it.verify()
    it.source = Rows([(2, "a"), (9, "x")])
    assert it.verify_source() == (0, 0, 0)


def test_a_wrong_value_that_a_key_change_took_along_is_found(client: Client, database: str) -> None:
    """The topic tells, whatever the stream has kept of the row."""
    it = hand(client, database, "replacing", [MADE, LAST], [FIRST, GONE])
    it.read((1, 1))
    client.command(f"ALTER TABLE {database}.t UPDATE v = 'wrong' WHERE id = 1 SETTINGS mutations_sync = 2")
    it.feed.at = {0: 0, 1: 1}
    it.read((1, 2))
    it.feed.at = {0: 0, 1: 2}
    it.read((0, 1))
    assert it.view() == [(2, "wrong")]
    assert it.verify() == (0, 0, 1)


def test_values_that_the_stream_did_not_know_either_are_no_reason(client: Client, database: str) -> None:
    events = [FIRST, postgres("u", key(5), None, row(5, PLACEHOLDER), 50, 60)]
    it = made(client, database, OWN["replacing"], policy_of(on_bad_record="dead_letter"), [events])
    it.read_all()
    assert it.feed.letters == 1
    lose(it, 1)
    assert it.verify() == (1, 0, 0)
