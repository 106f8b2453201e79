"""The contract of writer and lookup on real servers."""

from tests.contract.test_table import *  # noqa: F403
