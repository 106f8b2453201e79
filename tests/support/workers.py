"""How pytest-xdist spreads the tests: whole files, and whole folders where the files share servers."""

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

SERVERS = ("tests/job/", "tests/kafka/", "tests/real/", "tests/engines/")
"""Folders whose tests start Spark, Kafka, databases or older engines: one worker runs a whole folder, so that each of
these starts once."""


class WholeFiles(LoadScopeScheduling):
    """Units of work in the order of collection; a worker takes the next one when it is nearly through with its own."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return next((folder for folder in SERVERS if nodeid.startswith(folder)), nodeid.partition("::")[0])
