"""The contract of the pending table on real servers."""

from tests.contract.test_handover import *  # noqa: F403
