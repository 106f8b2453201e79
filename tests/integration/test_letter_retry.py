"""Dead letters of tables that cannot tell which change is newer: what the topic and the ledger say decides."""

import json
from collections.abc import Mapping

import pytest

from ch_sink.model.policy import policy_of
from ch_sink.order import State
from ch_sink.ports import CLOCKS, DeadLetter, FinishedRange, RangeIntent, TableRefilled
from ch_sink.stream.letter_keys import LaterRecords
from ch_sink.stream.letter_retry import LetterRetry, Retried
from ch_sink.testing.memory_ledger import MemoryLedger
from tests.support.hand import PLACEHOLDER, Event, HandFed, key_change, postgres
from tests.support.hand_tables import Make, delete, insert, make, row, update

__all__ = ["make"]

pytestmark = pytest.mark.integration


def letter(fed: HandFed, offset: int) -> DeadLetter:
    (event,) = [e for o, e in fed.log[0] if o == offset]
    name = None if event.key is None else json.dumps(event.key).encode()
    return DeadLetter(
        "t", 0, offset, 1_700_000_000_000, name, json.dumps(event.value).encode(), (), "decode", "v", "too long"
    )


def retried(fed: HandFed, ledger: MemoryLedger, offset: int, later: Mapping[bytes, int]) -> Retried:
    fed.restart()
    retry = LetterRetry(fed.sink(0), ledger, fed.states.get(0, State()), lambda _first, _but: LaterRecords(later))
    return retry.run([letter(fed, offset)])


def claimed() -> MemoryLedger:
    ledger = MemoryLedger("s")
    ledger.claim("retry")
    return ledger


def test_a_letter_waits_while_a_batch_that_was_begun_may_have_stored_a_newer_change(make: Make) -> None:
    """A killed batch of a collapsing table has stored its chunks and has no result; the next goes on behind them."""
    fed = make("collapsing")
    events = [insert(1, "a", 1), update(row(1, "a"), row(1, "bad"), 2), update(row(1, "bad"), row(1, "new"), 3)]
    fed.log[0] = list(enumerate(events))
    fed.apply(0, 0, 1)  # the record at offset 1 became a dead letter
    fed.apply(0, 2, 3)  # stored by a batch that was killed after it
    ledger = claimed()
    ledger.intents([RangeIntent("t", "id", 0, 2, 9, 1000, 1 << 20)])
    done = retried(fed, ledger, 1, {})
    assert (done.applied, done.superseded, list(done.failed)) == ([], [], [1])
    assert fed.view() == [(1, "new")]


@pytest.mark.parametrize("engine", ["replacing", "collapsing", "append"])
@pytest.mark.parametrize("minutes", [5, 0, -5])
def test_a_letter_is_outdated_once_the_table_was_filled_from_the_source(make: Make, engine: str, minutes: int) -> None:
    """The row was deleted before, and a table that was filled has no mark of it; positions are not known."""
    fed = make(engine)
    fed.log[0] = list(enumerate([insert(1, "a", 100), insert(2, "bad", 110), insert(3, "c", 120)]))
    fed.apply(0, 0, 1)
    fed.apply(0, 2, 3)
    ledger, sent = claimed(), letter(fed, 1).timestamp
    ledger.record(TableRefilled("id", 0, 3, until=sent + minutes * 60_000 + CLOCKS))
    done = retried(fed, ledger, 1, {})
    shown = minutes == 5  # later, the clocks may be at fault
    assert (done.superseded, done.applied) == (([1], []) if shown else ([], [1]))
    assert fed.view() == [(1, "a"), *([] if shown else [(2, "bad")]), (3, "c")]


@pytest.mark.parametrize("later", [{b"": 2}, {}])
def test_records_without_a_key_supersede_no_letter(make: Make, later: Mapping[bytes, int]) -> None:
    """A later record without a Kafka key may be of any row: the letter is neither applied nor counted as outdated."""
    fed = make("collapsing", policy=policy_of(key_columns=("id",)))
    events = [Event(None, e.value) for e in (insert(1, "a", 1), insert(2, "bad", 2), insert(3, "c", 3))]
    fed.log[0] = list(enumerate(events))
    fed.apply(0, 0, 1)
    done = retried(fed, claimed(), 1, later)
    if later:
        assert (done.applied, done.superseded, list(done.failed)) == ([], [], [1])
    else:
        assert done.applied == [1]
        assert fed.view() == [(1, "a"), (2, "bad")]


@pytest.mark.parametrize("stated", ["newer", PLACEHOLDER])
@pytest.mark.parametrize("engine", ["replacing", "collapsing", "append"])
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
    done = retried(fed, claimed(), 1, {})
    fed.restart()
    fed.feed([left], partition=1)
    fed.sink(0)
    fed.drain()
    assert fed.view() == [(2, "newer" if stated == "newer" else "large", 2)]
    assert (done.applied, done.waiting) == ([], [1])


@pytest.mark.parametrize("engine", ["replacing", "collapsing", "append"])
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
    key = json.dumps(bad.key).encode()
    done = retried(fed, ledger, 1, {key: 3})
    assert (done.failed, len(done.applied) + len(done.superseded)) == ({}, 1)
    assert (fed.view(), fed.query("SELECT count() FROM {t}")) == (before, stored)


def test_a_letter_is_no_repeat_of_another_change_of_its_transaction(make: Make) -> None:
    fed, ledger = make("append"), claimed()
    one = postgres("u", {"id": 1}, None, row(1, "x"), 110, 100)
    other = postgres("u", {"id": 1}, None, row(1, "y"), 110, 101)
    fed.log[0] = list(enumerate([postgres("c", {"id": 1}, None, row(1, "a"), 100, 90), one, other]))
    fed.apply(0, 0, 1)
    ledger.results([FinishedRange("t", "id", 0, 0, 1, state=fed.states[0].to_json())])
    fed.apply(0, 2, 3)
    done = retried(fed, ledger, 1, {})
    assert (done.applied, done.failed) == ([1], {})
    assert fed.query("SELECT v FROM {t} ORDER BY _version") == [("a",), ("x",), ("y",)]
