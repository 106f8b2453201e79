"""The contract of the pending table on real servers."""

from tests.contract.test_pending import *  # noqa: F403
