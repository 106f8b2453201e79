"""The table of docs/servers.md says what was measured; ``CH_SINK_WRITE_PAGE=1`` writes it.

CH_SINK_WRITE_PAGE=1 .venv/bin/pytest tests/engines/test_page.py -k whole
"""

import os

import pytest

from ch_sink.clickhouse import Client
from tests.support.endpoint import on_engines
from tests.support.engine_measures import HEAVY, MEASURES, PAGE, cells, with_cells

pytestmark = pytest.mark.integration


def engine_of(client: Client) -> str:
    """The table's name for an engine: year and month of its version."""
    return ".".join(client.server_version.split(".")[:2])


@pytest.mark.long
@on_engines("25.8", "26.3", "")
def test_the_page_says_what_an_engine_does(client: Client, database: str) -> None:
    found = {line: measure(client, database) for line, measure in MEASURES.items() if line not in HEAVY}
    said = cells(engine_of(client))
    assert found == {line: said[line] for line in found}
    assert set(said) == set(MEASURES)


@pytest.mark.long
@on_engines("25.8", "26.1", "26.3", "26.5", "26.7", "")
def test_the_whole_page_is_as_measured(client: Client, database: str) -> None:
    found = {line: measure(client, database) for line, measure in MEASURES.items()}
    if os.environ.get("CH_SINK_WRITE_PAGE"):
        PAGE.write_text(with_cells(engine_of(client), found), encoding="utf-8")
    assert found == cells(engine_of(client))
