"""Dead letters of an added partition."""

import pytest

from ch_sink.clickhouse import Client
from ch_sink.model.policy import policy_of
from tests.support.choose import each_value
from tests.support.hand import OWN, insert, row, update
from tests.support.hand_commands import made
from tests.support.hand_steps import BIG, retried, widen

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(("strategy", "kept"), each_value(["auto", "kafka_offset"], [500, 2]))
def test_a_letter_of_the_first_batch_of_an_added_partition_wins_over_what_came_before_it(
    client: Client, database: str, strategy: str, kept: int
) -> None:
    """The epoch rose as that batch began; no state before the letter says so."""
    clause, own = OWN["replacing"]
    chosen = policy_of(on_bad_record="dead_letter", version_strategy=strategy)
    former = [insert(1, "a", 100, n=1)]
    it = made(client, database, (clause, f"n Nullable(UInt8), {own}"), chosen, [former])
    it.feed.book.keep(kept)
    it.read_all()
    added = [update(row(1, "a", n=1), row(1, "b", n=1), 110), update(row(1, "b", n=1), row(1, "c", n=BIG), 120)]
    added += [insert(n, "x", 200 + n, n=1) for n in range(2, 14)]
    it.topic(former, added)
    it.read(*((1, end) for end in range(2, 14)))
    widen(it)
    assert retried(it, 1).applied == [1]
    assert it.view()[0] == (1, "c")
