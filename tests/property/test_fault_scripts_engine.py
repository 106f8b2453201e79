"""Drawn fault scripts over the real engine with its merges stopped, tables that collapse with rollups: see
test_fault_scripts.
"""

import os
from collections.abc import Callable, Iterable
from itertools import islice

import pytest

from ch_sink.clickhouse import Client
from tests.support.fault_scripts import Script
from tests.support.fault_scripts_engine import engine_faults, engine_scripts
from tests.support.rollups import COMPUTED

Wrong = Callable[[Iterable[Script]], dict[str, str]]
"""Script → what is wrong at its end."""

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture
def wrong_in(client: Client, database: str, own_tables: str) -> Wrong:
    def found(chosen: Iterable[Script]) -> dict[str, str]:
        rolled = {"collapsing": COMPUTED, "versioned": COMPUTED}
        wrong = {
            str(s): engine_faults(client, database, own_tables, s, rollups=rolled.get(s.case.engine, ()))
            for s in chosen
        }
        return {script: texts[0] for script, texts in wrong.items() if texts}

    return found


def test_tables_and_rollups_equal_their_source(wrong_in: Wrong) -> None:
    """Of two kinds of engines; tables that collapse have rollups."""
    kinds = ("collapsing", "append")
    assert wrong_in(script for script in engine_scripts(1, 1, 1) if script.case.engine in kinds) == {}


@pytest.mark.long
def test_ten_thousand_scripts(wrong_in: Wrong) -> None:
    """``CH_SINK_SCRIPTS``: how many instead."""
    count = int(os.environ.get("CH_SINK_SCRIPTS", "10000"))
    assert wrong_in(islice(engine_scripts(200_000, -(-count // 50), 10), count)) == {}
