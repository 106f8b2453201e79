"""Dead letters: their versions decide, or they stay open and the source is to be asked."""

import json
from dataclasses import replace

import pytest

from ch_sink.memory import MemoryLedger
from ch_sink.model.policy import policy_of
from ch_sink.order import State
from ch_sink.pipeline.target import Target
from ch_sink.ports import CLOCKS, DeadLetter, FinishedRange, RowsEdited, TableRefilled, TopicFacts
from ch_sink.stream.partition_states import States
from ch_sink.wiring.letters import LetterRetry, Retried
from tests.support.hand import (
    PLACEHOLDER,
    Event,
    HandFed,
    Make,
    delete,
    insert,
    key_change,
    make,
    postgres,
    row,
    update,
)
from tests.support.hand_commands import MARKING, each_of

__all__ = ["make"]

pytestmark = pytest.mark.integration


def letter(fed: HandFed, offset: int) -> DeadLetter:
    (event,) = [e for o, e in fed.log[0] if o == offset]
    name, value = None if event.key is None else json.dumps(event.key).encode(), json.dumps(event.value).encode()
    return DeadLetter("t", 0, offset, 1_700_000_000_000, name, value, event.headers or (), "decode", "v", "too long")


def retried(fed: HandFed, ledger: MemoryLedger, offset: int) -> Retried:
    fed.restart()
    return LetterRetry(fed.sink(0), ledger, fed.states.get(0, State())).run([letter(fed, offset)])


def claimed() -> MemoryLedger:
    ledger = MemoryLedger("s")
    ledger.claim("retry")
    return ledger


@pytest.mark.parametrize("engine", ["collapsing", "versioned", "append"])
def test_a_letter_of_a_table_whose_versions_do_not_decide_stays_open(make: Make, engine: str) -> None:
    fed = make(engine)
    fed.log[0] = list(enumerate([insert(1, "a", 100), insert(2, "bad", 110), insert(3, "c", 120)]))
    fed.apply(0, 0, 1)
    fed.apply(0, 2, 3)
    before, done = fed.view(), retried(fed, claimed(), 1)
    assert (done.applied, done.superseded, list(done.failed)) == ([], [], [1])
    assert "ch_sink repair CONFIG --key KEY --apply" in done.failed[1]
    assert fed.view() == before


@pytest.mark.parametrize("engine", ["replacing", "sign"])
@pytest.mark.parametrize("minutes", [5, 0, -5])
def test_a_letter_is_outdated_once_the_table_was_filled_from_the_source(make: Make, engine: str, minutes: int) -> None:
    """The row was deleted before, and a table that was filled has no mark of it; positions are not known."""
    fed = make(engine)
    fed.log[0] = list(enumerate([insert(1, "a", 100), insert(2, "bad", 110), insert(3, "c", 120)]))
    fed.apply(0, 0, 1)
    fed.apply(0, 2, 3)
    ledger, sent = claimed(), letter(fed, 1).timestamp
    ledger.record(TableRefilled("id", 0, 3, until=sent + minutes * 60_000 + CLOCKS))
    done = retried(fed, ledger, 1)
    shown = minutes == 5  # later, the clocks may be at fault
    assert (done.superseded, list(done.failed), done.applied) == (([1], [], []) if shown else ([], [1], []))
    assert fed.view() == [(1, "a"), (3, "c")]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("stated", ["newer", PLACEHOLDER])
@pytest.mark.parametrize("engine", ["replacing", "sign"])
def test_a_letter_of_a_row_whose_earlier_changes_wait_waits_behind_them(make: Make, engine: str, stated: str) -> None:
    """The row has taken another key, and its values are still to come from there."""
    fed = make(engine, more="n Int64")
    created = postgres("c", {"id": 1}, None, row(1, "large", n=1), 100, 90)
    left, _, taken = key_change(
        postgres("d", {"id": 1}, None, None, 200, 190),
        postgres("c", {"id": 2}, None, row(2, PLACEHOLDER, n=1), 200, 190),
    )
    fed.feed([created], partition=1)
    fed.log[0] = list(enumerate([taken, postgres("u", {"id": 2}, None, row(2, stated, n=2), 210, 205)]))
    fed.apply(0, 0, 1)  # the record at offset 1 became a dead letter
    done = retried(fed, claimed(), 1)
    fed.restart()
    fed.feed([left], partition=1)
    fed.sink(0)
    fed.drain()
    assert fed.view() == [(2, "newer" if stated == "newer" else "large", 2)]
    assert (done.applied, done.waiting) == ([], [1])


@pytest.mark.parametrize("engine", ["replacing", "sign"])
def test_a_letter_of_a_row_that_took_a_key_is_not_outdated_by_the_delete_of_its_former_owner(
    make: Make, engine: str
) -> None:
    """Keys 1 and 2 are swapped in one transaction, and the row that takes key 2 becomes a letter."""
    fed = make(engine)
    first, second = (
        key_change(
            postgres("d", {"id": old}, None, None, 200, lsn), postgres("c", {"id": new}, None, row(new, v), 200, lsn)
        )
        for old, new, v, lsn in ((1, 2, "one", 150), (2, 1, "two", 160))
    )
    created = [postgres("c", {"id": i}, None, row(i, v), 100 + i, 90 + i) for i, v in ((1, "one"), (2, "two"))]
    fed.log[0] = list(enumerate([*created, *first, *second]))
    fed.apply(0, 0, 4)
    fed.apply(0, 5, 8)
    done = retried(fed, claimed(), 4)
    assert (done.applied, done.superseded, list(done.failed)) == ([], [], [4])
    assert "keys swapped in one transaction" in done.failed[4]
    fed.log[0].append((8, postgres("c", {"id": 2}, None, row(2, "new"), 300, 290)))
    fed.apply(0, 8, 9)
    assert retried(fed, claimed(), 4).superseded == [4]
    assert fed.view() == [(1, "two"), (2, "new")]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("engine", ["replacing", "sign"])
@pytest.mark.parametrize(
    "bad",
    [insert(2, "x", 110), update(row(1, "a"), row(1, "x"), 110), delete(row(1, "a"), 110)],
    ids=lambda e: e.value["op"],
)
def test_a_letter_that_was_applied_when_it_was_delivered_again_is_not_stored_twice(
    make: Make, engine: str, bad: Event
) -> None:
    fed, ledger = make(engine), claimed()
    fed.log[0] = list(enumerate([insert(1, "a", 100), bad, insert(3, "c", 120), bad, insert(4, "d", 130)]))
    for start, end in ((0, 1), (2, 5)):
        fed.apply(0, start, end)
        fed.letters.put([letter(fed, 1)], "")
        ledger.results([FinishedRange("t", "id", 0, start, end, state=fed.states[0].to_json())])
    before, stored = fed.view(), fed.query("SELECT count() FROM {t}")
    done = retried(fed, ledger, 1)
    assert (done.failed, len(done.applied) + len(done.superseded)) == ({}, 1)
    assert (fed.view(), fed.query("SELECT count() FROM {t}")) == (before, stored)


@each_of("engine", MARKING, "replacing")
def test_a_letter_of_before_the_strategy_changed(make: Make, engine: str) -> None:
    """A later change of the key, read before the strategy changed, wins over the letter."""
    fed, ledger = make(engine), MemoryLedger("s")
    ledger.claim("x")
    ledger.record(TopicFacts("id", 1, 0))
    bad, good = insert(2, "bad", 110), update(row(2, "bad"), row(2, "good"), 120)
    fed.log[0] = list(enumerate([insert(1, "a", 100), bad, good, insert(3, "c", 130)]))

    def read(first: int, reached: int, end: int) -> None:
        fed.apply(0, first, end)
        ledger.results([FinishedRange("t", "id", 0, reached, end, state=fed.states[0].to_json())])

    read(0, 0, 1)
    read(2, 1, 3)
    fed.policy = policy_of(truncate="apply", on_bad_record="fail", version_strategy="kafka_offset")
    fed.target = Target.of(fed.table, fed.policy)
    fed.restart()
    read(3, 3, 4)
    before = fed.view()
    assert before == [(1, "a"), (2, "good"), (3, "c")]
    fed.restart()
    key, value = json.dumps(bad.key).encode(), json.dumps(bad.value).encode()
    letter = DeadLetter("t", 0, 1, 1_700_000_000_000, key, value, (), "decode", "v", "x")
    done = LetterRetry(fed.sink(0), ledger, States(ledger, "id", 1, None).at(0, 4)).run([letter])
    assert list(done.failed) == [1]
    assert fed.view() == before


SENT = 1_700_000_000_000


@each_of("engine", MARKING, "replacing")
def test_a_letter_below_the_position_at_which_the_table_was_filled(make: Make, engine: str) -> None:
    """The connector sent both late, behind the filling: the delete is dropped as loaded, and so is the letter."""
    fed, ledger = make(engine), MemoryLedger("s")
    ledger.claim("x")
    ledger.record(TopicFacts("id", 1, 0))
    a = insert(1, "a", 100)
    position = 1 << 62
    fed.log[0] = list(enumerate([a, insert(2, "bad", 110), delete(row(2, "bad"), 120)]))
    fed.apply(0, 0, 1)
    ledger.results([FinishedRange("t", "id", 0, 0, 1, state=fed.states[0].to_json())])
    # The records came after the rows were read: `shows` does not decide, the position does.
    ledger.record(TableRefilled("id", 0, 1, position=position, epoch=0, until=SENT + CLOCKS))
    fed.restart()
    fed.states[0] = States(ledger, "id", 1, None).at(0, 1)
    assert fed.states[0].loaded.position == position
    fed.apply(0, 2, 3)
    ledger.results([FinishedRange("t", "id", 0, 1, 3, state=fed.states[0].to_json())])
    assert fed.view() == [(1, "a")]
    fed.restart()
    retry = LetterRetry(
        fed.sink(0),
        ledger,
        States(ledger, "id", 1, None).at(0, 3),
    )
    retry.run([letter(fed, 1)])
    assert fed.view() == [(1, "a")]


def test_a_retry_after_a_purge_and_a_repeated_stretch(make: Make) -> None:
    """The stretch came again after the purge: its delete is recognised and leaves no mark; its letter stays open."""
    fed, ledger = make("replacing"), MemoryLedger("s")
    ledger.claim("x")
    bad, gone = insert(2, "bad", 110), delete(row(2, "bad"), 120)
    fed.log[0] = list(enumerate([insert(1, "a", 100), bad, gone, insert(3, "c", 130), bad, gone, insert(4, "d", 140)]))
    for start, end in ((0, 1), (2, 4)):
        fed.apply(0, start, end)
        ledger.results([FinishedRange("t", "id", 0, start, end, state=fed.states[0].to_json())])
    [(top,)] = fed.query("SELECT max(_version) FROM {t} WHERE id = 2")
    fed.client.command(f"ALTER TABLE {fed.name} DELETE WHERE id = 2 SETTINGS mutations_sync = 2")  # the purge
    ledger.record(RowsEdited("id", 0, 4, "removed", top=str(top)))
    before = [(1, "a"), (3, "c"), (4, "d")]
    fed.apply(0, 5, 7)
    ledger.results([FinishedRange("t", "id", 0, 4, 7, state=fed.states[0].to_json())])
    assert fed.view() == before
    fed.restart()
    assert list(LetterRetry(fed.sink(0), ledger, fed.states[0]).run([letter(fed, 4)]).failed) == [4]
    assert fed.view() == before
    fed.log[0].append((7, insert(2, "later", 150)))
    fed.restart()
    ledger.record(RowsEdited("id", 0, 8, "removed", top=str(top), left=str(top)))  # by key, for which 7 may have been
    unkeyed = replace(letter(fed, 7), key=None)
    assert list(LetterRetry(fed.sink(0), ledger, fed.states[0]).run([unkeyed]).failed) == [7]
    assert LetterRetry(fed.sink(0), ledger, fed.states[0]).run([letter(fed, 7)]).applied == [7]
    assert fed.view() == [(1, "a"), (2, "later"), (3, "c"), (4, "d")]
