"""The contract of the hand-over table on real servers."""

from tests.contract.test_handover import *  # noqa: F403
