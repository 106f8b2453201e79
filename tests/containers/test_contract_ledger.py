"""The contract of the ledger on real servers."""

from tests.contract.test_ledger import *  # noqa: F403
