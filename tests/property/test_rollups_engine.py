"""Drawn fault scripts over the real engine: each rollup equals GROUP BY over the source's rows. See test_rollups."""

import os
from collections.abc import Iterator
from itertools import islice

import pytest

from ch_sink.clickhouse import Client
from tests.support.fault_scripts import Script
from tests.support.fault_scripts_engine import engine_faults, engine_scripts
from tests.support.rollups import COMPUTED

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def collapsing(first: int, histories: int, each: int) -> Iterator[Script]:
    return (s for s in engine_scripts(first, histories, each) if s.case.engine in ("collapsing", "versioned"))


def test_rollups_equal_the_source_whatever_happens(client: Client, database: str, own_tables: str) -> None:
    found = {str(s): engine_faults(client, database, own_tables, s, rollups=COMPUTED) for s in collapsing(1, 8, 1)}
    assert {script: wrong[0] for script, wrong in found.items() if wrong} == {}


@pytest.mark.long
def test_a_thousand_scripts(client: Client, database: str, own_tables: str) -> None:
    """``CH_SINK_SCRIPTS``: how many instead."""
    count = int(os.environ.get("CH_SINK_SCRIPTS", "1000"))
    drawn = islice(collapsing(400_000, count, 5), count)
    found = {str(s): engine_faults(client, database, own_tables, s, rollups=COMPUTED) for s in drawn}
    assert {script: wrong[0] for script, wrong in found.items() if wrong} == {}
