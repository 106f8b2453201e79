"""The product on older engines: recorded streams, the types of every connector, a drawn history, faults.

Each table of the recorded databases is read in one of its encodings. What `make test` leaves out here is in
``test_whole_suite``, for the long run.
"""

import pytest

from ch_sink.clickhouse import Client
from tests.property.test_histories_engine import POLICY as OF_HISTORIES
from tests.property.test_histories_engine import answers
from tests.support.cases import Case, drawn
from tests.support.endpoint import on_engines
from tests.support.engine_measures import recorded_faults, type_counts
from tests.support.fault_scripts_engine import EngineRun, engine_faults, engine_scripts
from tests.support.recorded import CASES, one_encoding_each

pytestmark = pytest.mark.integration

OLDER = ("25.8", "26.3")


@on_engines(*OLDER)
def test_every_recorded_table_equals_its_source(client: Client, database: str) -> None:
    count, wrong = recorded_faults(client, database)
    assert wrong == {}
    assert count == len(one_encoding_each(CASES))


@pytest.mark.long
@on_engines("25.8", long=("26.3",))
def test_every_type_is_stored_as_the_source_shows_it(client: Client, database: str) -> None:
    """Through Avro here; through JSON with a schema for the whole page, in the long run."""
    count, refused, as_text, wrong = type_counts(client, database, "avro")
    assert wrong == {}
    assert (count, refused, as_text) == (482, 71, 34)


@pytest.mark.long
@on_engines(*OLDER)
def test_a_drawn_history_is_answered_with_the_sources_rows(client: Client, database: str, own_tables: str) -> None:
    case = Case(510, "collapsing", "adverse")
    history, plan = drawn(case)
    run = EngineRun(client, database, own_tables, history, case.engine, OF_HISTORIES)
    run.run(plan)
    assert answers(run.table, case) == []
    run.table.merge()
    assert answers(run.table, case) == []


@pytest.mark.long
@on_engines("25.8")
def test_tables_equal_their_source_whatever_happens(client: Client, database: str, own_tables: str) -> None:
    drawn_scripts = engine_scripts(1, 1, 1)
    found = {str(script): engine_faults(client, database, own_tables, script) for script in drawn_scripts}
    assert {script: wrong[0] for script, wrong in found.items() if wrong} == {}
