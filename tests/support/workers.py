"""How pytest-xdist spreads the tests: whole files, and one unit for all files that share Kafka and Spark."""

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

__all__ = ["SERVERS", "WholeFiles"]

SERVERS = ("tests/job/", "tests/kafka/", "tests/real/")
"""Folders whose tests start Kafka or Spark: one worker runs them all, so that each server starts once. So it is with
the older engines of tests/engines."""


class WholeFiles(LoadScopeScheduling):
    """Units of work in the order of collection; a worker takes the next one when it is nearly through with its own."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith("tests/engines/"):
            return "engines"
        return "servers" if nodeid.startswith(SERVERS) else nodeid.partition("::")[0]
