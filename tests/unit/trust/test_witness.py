"""Records that a fold of the topic cannot apply, and the stream has applied, or never had to."""

from types import SimpleNamespace
from typing import Any

import pytest

from ch_sink.errors import StreamFailed
from ch_sink.memory import MemoryLedger
from ch_sink.trust.subject import expect_witness
from tests.support.ledgers import intent, result


def fold_with_a_letter_at(offset: int) -> Any:
    letter = SimpleNamespace(partition=0, offset=offset, kind="value", reason="too large")
    return SimpleNamespace(topic_id="t1", letters=SimpleNamespace(stored={(0, offset): letter}))


def subject_that_began_at(offset: int, letters: frozenset[tuple[int, int]] = frozenset()) -> Any:
    ledger = MemoryLedger("s")
    ledger.claim("r1")
    ledger.results([result(offset, offset)])
    ledger.intents([intent(offset, 20)])
    ledger.results([result(offset, 20)])
    return SimpleNamespace(ledger=ledger, settings=SimpleNamespace(name="s"), not_applied=lambda topic_id: letters)


def test_a_record_below_the_start_of_the_stream_does_not_count() -> None:
    expect_witness(subject_that_began_at(10), fold_with_a_letter_at(9))


@pytest.mark.parametrize("offset", [10, 19, 20])
def test_a_record_that_the_stream_has_applied_or_has_yet_to_read_ends_the_comparison(offset: int) -> None:
    with pytest.raises(StreamFailed, match=rf"not among the dead letters of 's': first that at offset {offset}"):
        expect_witness(subject_that_began_at(10), fold_with_a_letter_at(offset))
    expect_witness(subject_that_began_at(10, frozenset({(0, offset)})), fold_with_a_letter_at(offset))
