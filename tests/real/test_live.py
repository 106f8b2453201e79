"""Tables follow live databases through snapshot, concurrent transactions and kills, and equal them in the end."""

import pytest

from ch_sink.clickhouse import Client
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from tests.real.conftest import Stand
from tests.real.scenario import Scenario
from tests.real.shapes import shapes

# The first test waits for the whole run: four minutes on two cores that have nothing else to do.
pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]
CASES = [
    (source, form, shape.name)
    for source in ("mariadb", "postgres")
    for shape in shapes(source)
    for form in shape.formats_of(source)
]


@pytest.fixture(scope="module")
def live(
    stand: Stand, clickhouse: EmbeddedClickHouse, client: Client, tmp_path_factory: pytest.TempPathFactory
) -> Scenario:
    """All sources and formats that this machine has, carried over while everything changes."""
    folder = tmp_path_factory.mktemp("live")
    scenario = Scenario(folder, stand.kafka, stand.connect, clickhouse, client, stand.sources, stand.formats)
    scenario.run()
    return scenario


@pytest.mark.parametrize(("source", "form", "table"), CASES)
def test_the_table_equals_its_source(source: str, form: str, table: str, live: Scenario, stand: Stand) -> None:
    for part in (source, form):
        if part in stand.missing:
            pytest.skip(stand.missing[part])
    [stream] = [s for s in live.streams if (s.source.name, s.format.name, s.shape.name) == (source, form, table)]
    assert live.truth[source, table].rows, "the source's table is empty: nothing was compared"
    assert live.dead_letters(stream) == []
    assert live.differences(stream) == []


def test_the_job_ended_as_it_was_told_after_a_run_that_was_no_idle_one(live: Scenario) -> None:
    assert live.exit_code == 130
    assert all(live.committed[source.name] >= 100 for source in live.sources), live.committed
    assert [status["table"] for status in live.status if status["dead_letters"]] == []
