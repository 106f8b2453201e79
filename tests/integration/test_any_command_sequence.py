"""Random sequences of commands: after each of them the table is what its source is, and commands say nothing else.

A sequence that fails is shortened and printed as a Plan, which ``run`` repeats.
"""

import pytest

from ch_sink.clickhouse import Client
from tests.support.choose import some
from tests.support.machine_run import Plan, drawn, run, shortened

pytestmark = pytest.mark.integration

LONG = 400
FOUND = [
    # Partitions are added while the job has yet to read a failover to lower positions.
    Plan(engine="collapsing", partitions=1, strategy="auto", kept=2, chunk=2, wide=0.2, lost="fail", pg=False,
         steps=(("write", 773594), ("read", 867374), ("fail over", 922261), ("partition", 180754), ("write", 251070))),
]  # fmt: skip
"""Shortened sequences that failed once."""


def _expect_good(client: Client, seed: int) -> None:
    plan = drawn(seed)
    if run(client, plan).failure:
        least, outcome = shortened(client, plan)
        pytest.fail(f"seed {seed}: {outcome.failure}\n{least}")


@pytest.mark.parametrize("plan", FOUND)
def test_a_sequence_that_failed_once(client: Client, plan: Plan) -> None:
    assert not run(client, plan).failure


@pytest.mark.long
@pytest.mark.parametrize("seed", some([(n,) for n in (200, 208, 215, 301, 302, 2001)], [(208,), (215,), (2001,)]))
def test_a_random_sequence(client: Client, seed: int) -> None:
    _expect_good(client, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10_000, 10_000 + LONG))
def test_many_random_sequences(client: Client, seed: int) -> None:
    _expect_good(client, seed)
