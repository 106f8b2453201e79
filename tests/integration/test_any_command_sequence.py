"""Random sequences of commands: after each of them the table is what its source is, and commands say nothing else.

A sequence that fails is shortened and printed as a Plan, which ``run`` repeats.
"""

import pytest

from ch_sink.clickhouse import Client
from tests.support.machine_run import drawn, run, shortened

pytestmark = pytest.mark.integration

LONG = 400


def _expect_good(client: Client, seed: int) -> None:
    plan = drawn(seed)
    if run(client, plan).failure:
        least, outcome = shortened(client, plan)
        pytest.fail(f"seed {seed}: {outcome.failure}\n{least}")


@pytest.mark.parametrize("seed", [200, 208, 215, 301, 302, 2001])
def test_a_random_sequence(client: Client, seed: int) -> None:
    _expect_good(client, seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10_000, 10_000 + LONG))
def test_many_random_sequences(client: Client, seed: int) -> None:
    _expect_good(client, seed)
