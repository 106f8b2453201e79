"""The contract of dead letters on real servers."""

from tests.contract.test_dead_letters import *  # noqa: F403
