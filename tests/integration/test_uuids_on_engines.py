"""UUIDs on each engine: stored as the source has them, compared with what is true, repaired."""

import pytest

from ch_sink.clickhouse import Client
from ch_sink.model.policy import policy_of
from ch_sink.trust.repair import repaired
from ch_sink.trust.subject import Options
from tests.support.endpoint import on_engines
from tests.support.hand import OWN, Event, insert, row, update
from tests.support.hand_commands import made

pytestmark = [pytest.mark.integration, on_engines("", "25.8", long=["26.3"])]

UUID = "61f0c404-5cb3-11e7-907b-a6006ad3dba0"
REVERSED = "e711b35c-04c4-f061-a0db-d36a00a67b90"
"""What 26.1 to 26.3 make of its sixteen bytes."""
COLUMNS = "u UUID, l Array(Nullable(UUID))"


@pytest.mark.long
@pytest.mark.parametrize("engine", ["replacing", pytest.param("collapsing", marks=pytest.mark.long)])
def test_a_uuid_that_was_stored_wrongly_is_found_and_repaired(client: Client, database: str, engine: str) -> None:
    values = {"u": UUID.upper(), "l": [UUID, None]}
    events: list[Event] = [insert(1, "a", 10, **values), update(row(1, "a", **values), row(1, "b", **values), 11)]
    kind, columns = OWN[engine]
    it = made(client, database, (kind, f"{COLUMNS}, {columns}"), policy_of(on_bad_record="fail"), [events])
    it.read_all()
    shown = f"SELECT id, v, toString(u) AS u, toString(l) AS l FROM {database}.t FINAL"
    right = {"id": 1, "v": "b", "u": UUID, "l": f"['{UUID}',NULL]"}
    assert client.rows(shown) == [right]
    assert it.verify() == (0, 0, 0)
    client.command(f"ALTER TABLE {database}.t UPDATE u = '{REVERSED}' WHERE 1 SETTINGS mutations_sync = 2")
    assert it.verify() == (0, 0, 1)
    assert repaired(it.subject, Options(patience=0), apply=True).left == 0
    assert client.rows(shown) == [right]
