"""Sequences of commands that were wrong once: after them, the table is what its source is."""

from pathlib import Path

import pytest

from ch_sink.clickhouse import Client
from tests.support.command_plans import Line, plans, run

pytestmark = pytest.mark.integration


@pytest.mark.sampled(4)
@pytest.mark.parametrize("line", plans(Path(__file__).parent / "regressions" / "command_plans.txt"), ids=str)
def test_a_plan(client: Client, database: str, line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    run(client, database, line, monkeypatch)
