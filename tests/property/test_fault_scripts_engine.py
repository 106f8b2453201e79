"""Drawn fault scripts over the real engine with its merges stopped: see test_fault_scripts."""

import os
from itertools import islice

import pytest

from ch_sink.clickhouse import Client
from tests.support.fault_scripts_engine import engine_faults, engine_scripts

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_tables_equal_their_source(client: Client, database: str, own_tables: str) -> None:
    """One of each engine for each of four histories."""
    drawn = engine_scripts(1, 4, 1)
    found = {str(script): engine_faults(client, database, own_tables, script) for script in drawn}
    assert {script: wrong[0] for script, wrong in found.items() if wrong} == {}


@pytest.mark.long
def test_ten_thousand_scripts(client: Client, database: str, own_tables: str) -> None:
    """``CH_SINK_SCRIPTS``: how many instead."""
    count = int(os.environ.get("CH_SINK_SCRIPTS", "10000"))
    drawn = islice(engine_scripts(200_000, -(-count // 50), 10), count)
    found = {str(script): engine_faults(client, database, own_tables, script) for script in drawn}
    assert {script: wrong[0] for script, wrong in found.items() if wrong} == {}
