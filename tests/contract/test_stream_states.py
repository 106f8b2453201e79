"""What every implementation of StreamStates keeps."""

from typing import Any

import pytest

from ch_sink.clickhouse import (
    ClickHouseLedger,
    ClickHouseStreamStates,
    Client,
    execute,
    ledger_table,
)
from ch_sink.errors import ClickHouseError
from ch_sink.ports import Alive, Compared, Condition, RangeIntent, RecordedState, Request, StreamStates
from tests.support.memory_stream import MemoryStreamStates
from tests.support.state_tables import create_statement

PAUSE, RESUME = Request("pause", "ann@ops", 5.0), Request("resume", "bob@ops", 6.0)
STOPPED = Condition("stopped", 4.5, 'column "x" is unknown\n', "add `x`", "host", "c1")
ALIVE = Alive("run", "host", 7, "123")


@pytest.fixture(params=["memory", "clickhouse"])
def states(request: pytest.FixtureRequest) -> StreamStates:
    if request.param == "memory":
        return MemoryStreamStates()
    return ClickHouseStreamStates(
        request.getfixturevalue("client").settings, request.getfixturevalue("own_tables"), "ledger"
    )


def test_an_unknown_stream_has_no_entries(states: StreamStates, stream: str) -> None:
    assert states.read([stream]) == {stream: RecordedState()}
    assert states.read([]) == {}


def test_entries_come_back_as_they_were(states: StreamStates, stream: str) -> None:
    other = f"{stream}'\\ other"
    states.ask({stream: PAUSE, other: RESUME})
    states.note({stream: STOPPED})
    states.beat({other: ALIVE})
    compared = Compared(9.5, 7.0, "source", 3, missing=1)
    states.compare({other: compared})
    found = states.read([stream, other])
    assert (found[stream].compared, found[other].compared) == (None, compared)
    assert (found[stream].request, found[stream].condition, found[stream].alive) == (PAUSE, STOPPED, None)
    assert (found[other].request, found[other].condition, found[other].alive) == (RESUME, None, ALIVE)
    assert 0 <= found[other].quiet < 30


def test_states_of_hundreds_of_streams_are_recorded_and_read(states: StreamStates, stream: str) -> None:
    """Their names and states would not fit into the URL of a request."""
    long = "x" * 200
    names = [f"{stream} {number} {long}" for number in range(800)]
    states.beat(dict.fromkeys(names, ALIVE))
    states.note(dict.fromkeys(names[::2], STOPPED))
    found = states.read(names)
    assert list(found) == names
    assert {state.alive for state in found.values()} == {ALIVE}
    assert [name for name, state in found.items() if state.condition == STOPPED] == names[::2]


def test_the_mark_changes_with_what_others_record(states: StreamStates, stream: str) -> None:
    seen = [states.mark()]
    for number, name in enumerate((stream, f"{stream} other", stream)):
        states.ask({name: PAUSE})
        seen.append(states.mark())
        states.compare({name: Compared(float(number), 7.0, "source", 3, 1)})
        seen.append(states.mark())
    assert None not in seen
    assert len(set(map(str, seen))) == len(seen)


def test_the_newest_entry_counts(states: StreamStates, stream: str) -> None:
    for _ in range(3):
        states.ask({stream: PAUSE})
        states.note({stream: STOPPED})
        assert not states.read([stream])[stream].asked_after
        states.ask({stream: RESUME})
        found = states.read([stream])[stream]
        assert (found.request, found.condition, found.asked_after) == (RESUME, STOPPED, True)
    states.note({stream: Condition("running", 9.0)})
    assert states.read([stream])[stream].condition == Condition("running", 9.0)


def own_ledger(client: Client, database: str) -> None:
    execute(client, [create_statement("ledger", database, "ledger")])


def test_entries_replace_each_other_so_that_their_number_does_not_grow(client: Client, database: str) -> None:
    own_ledger(client, database)
    states = ClickHouseStreamStates(client.settings, database, "ledger")
    for moment in range(5):
        states.beat({"a": ALIVE, "b": ALIVE})
        states.ask({"a": Request("pause", "ann", moment)})
        states.note({"a": Condition("waiting", moment, f"error {moment}")})
    client.command(f"OPTIMIZE TABLE {database}.ledger FINAL")
    assert client.rows(f"SELECT count() AS n FROM {database}.ledger") == [{"n": 4}]
    assert states.read(["a"])["a"].condition == Condition("waiting", 4, "error 4")


def test_a_clock_that_steps_back_hides_no_request(client: Client, database: str) -> None:
    own_ledger(client, database)
    states = ClickHouseStreamStates(client.settings, database, "ledger")
    states.note({"a": STOPPED})
    client.command(f"ALTER TABLE {database}.ledger UPDATE run_id = 'x' WHERE 1 SETTINGS mutations_sync = 2")
    ahead = "(entry, topic_id, state, written) SELECT entry, topic_id, state, written + 86400000000000"
    client.command(f"INSERT INTO {database}.ledger {ahead} FROM {database}.ledger")
    states.ask({"a": RESUME})
    assert states.read(["a"])["a"].asked_after


def test_the_ledger_of_a_stream_does_not_see_them(client: Client, database: str) -> None:
    own_ledger(client, database)
    ledger = ClickHouseLedger(client, database, "ledger", "a")
    ledger.claim("r1")
    ledger.intents([RangeIntent("t", "id", 0, 0, 10)])
    states = ClickHouseStreamStates(client.settings, database, "ledger")
    states.ask({"a": PAUSE})
    states.note({"a": STOPPED})
    states.beat({"a": ALIVE})
    assert [r.end for r in ledger.open_intents("id")] == [10]
    assert (ledger.totals(), ledger.history(9), ledger.topic_ids()) == ([], [], ["id"])
    ledger.check_claim()


def test_without_a_ledger_nothing_is_recorded_and_writing_says_so(client: Client, database: str) -> None:
    states = ClickHouseStreamStates(client.settings, database, "ledger")
    assert states.read(["a"]) == {"a": RecordedState()}
    with pytest.raises(ClickHouseError) as caught:
        states.ask({"a": PAUSE})
    assert caught.value.code == 60


@pytest.mark.long
def test_the_state_of_200_streams_is_read_from_a_few_rows_of_a_long_ledger(client: Client, database: str) -> None:
    own_ledger(client, database)
    client.command(
        f"INSERT INTO {database}.ledger (stream, entry, topic_id, start_offset, end_offset, batch, written) "
        "SELECT concat('s', toString(number % 200)), 'result', 'id', number, number + 1, number, number "
        "FROM numbers(400000)"
    )
    states, names = ClickHouseStreamStates(client.settings, database, "ledger"), [f"s{n}" for n in range(200)]
    states.beat(dict.fromkeys(names, ALIVE))
    states.note(dict.fromkeys(names, STOPPED))
    assert {r.condition for r in states.read(names).values()} == {STOPPED}
    asked = ledger_table._STATES.replace("$table", f"{database}.ledger")
    read: list[dict[str, Any]] = client.rows(f"EXPLAIN ESTIMATE {asked}", {"streams": names})
    assert sum(int(r["rows"]) for r in read) <= 8192 * 4
