"""A backup of the table and the sink's own tables is restored while a job works: it loses no row."""

from contextlib import closing
from dataclasses import asdict, replace

import pytest

from ch_sink.config import load_job
from ch_sink.discovery.wiring import ledger_of
from ch_sink.errors import StreamFailed, TakenBack
from ch_sink.order import State
from ch_sink.ports import FinishedRange, TableRefilled
from ch_sink.stream.coordinator import Coordinator
from ch_sink.stream.rollback import fill_note
from ch_sink.stream.tasks import Task, TaskResult
from ch_sink.wiring.streams import SharedTopics, stream_ports, stream_settings
from ch_sink.wiring.worker import run_configured
from tests.support.hand import mysql
from tests.support.kafka import fresh_topic, produce, recorded
from tests.support.sink import Place, inside, run_inline

pytestmark = pytest.mark.integration


def test_a_job_under_which_a_backup_is_restored_reads_again_what_came_since(place: Place) -> None:
    topic = fresh_topic()
    place.kafka.create_topic(topic, 1)
    config = place.config(topic, "orders")
    events = [mysql("c", {"id": n}, None, {"id": n, "v": f"v{n}"}, n) for n in range(3)]
    produce(place.kafka, recorded(topic, events[:1]))
    assert inside("init", config, "--apply").returncode == 0
    settings = load_job(config).only()
    text = settings.to_task_json()

    def execute(tasks: list[Task]) -> list[TaskResult]:
        return [run_configured(text, task) for task in tasks]

    tables = [row["name"] for row in place.rows("SELECT name FROM system.tables WHERE database = '{db}' "
                                                "AND engine != 'View'")]  # fmt: skip
    with closing(SharedTopics()) as topics:
        ports = stream_ports(settings, topics)
        job = Coordinator(stream_settings(settings), ports)
        job.open()

        def work() -> None:
            job.run_batch(job.plan(ports.topics.state(topic), None), execute)  # type: ignore[arg-type]

        work()
        for name in tables:
            place.client.command(f"CREATE TABLE {place.database}.{name}_kept CLONE AS {place.database}.{name}")
        produce(place.kafka, recorded(topic, events[1:2]))
        work()
        for name in tables:
            kept, own = f"{place.database}.{name}_kept", f"{place.database}.{name}"
            place.client.command(f"TRUNCATE TABLE {own}")
            place.client.command(f"ALTER TABLE {own} ATTACH PARTITION ALL FROM {kept}")
        produce(place.kafka, recorded(topic, events[2:]))
        with pytest.raises(TakenBack, match="ClickHouse was taken back to an earlier state"):
            work()
        job.close()
    run_inline(config)
    rows = place.rows("SELECT id, v FROM {db}.orders_current ORDER BY id")
    assert [tuple(row.values()) for row in rows] == [(n, f"v{n}") for n in range(3)]


def test_check_names_what_keeps_a_stream_from_going_on(place: Place) -> None:
    """Rows that are gone, more dead letters than the file accepts, and a topic that ends below what was read."""
    topic = fresh_topic()
    place.kafka.create_topic(topic, 1)
    events = [mysql("c", {"id": n}, None, {"id": n, "v": f"v{n}"}, n) for n in range(1, 4)]
    bad = replace(recorded(topic, events)[0], value=b"{")
    produce(place.kafka, [*recorded(topic, events), bad])
    config = place.config(topic, "orders", errors={"max": 1})
    assert inside("init", config, "--apply").returncode == 0
    run_inline(config)
    assert inside("check", config).returncode == 0
    place.client.command(f"ALTER TABLE {place.database}.orders DELETE WHERE id = 3", settings={"mutations_sync": 2})
    said = inside("check", config, "--set", "errors.max=0")
    assert said.returncode == 1
    assert "lacks rows that the stream has stored" in said.stdout
    assert "1 dead letter of this stream, and errors.max is 0" in said.stdout
    ledger = ledger_of(load_job(config).only(), place.client)
    ledger.claim("further")
    ledger.results([FinishedRange(topic, ledger.topic_ids()[0], 0, 50, 50, state=State().to_json())])
    ledger.release()
    assert "it has lost its end" in inside("check", config).stdout


@pytest.mark.long
def test_check_names_a_table_that_is_not_the_one_of_the_stream(place: Place) -> None:
    """As `run` does: another table in the file, and the stream keeps its name."""
    topic = fresh_topic()
    place.kafka.create_topic(topic, 1)
    event = mysql("c", {"id": 1}, None, {"id": 1, "v": "a"}, 1)
    produce(place.kafka, recorded(topic, [event]))
    config = place.config(topic, "orders", stream="orders")
    assert inside("init", config, "--apply").returncode == 0
    run_inline(config)
    assert inside("check", config).returncode == 0
    other = place.config(topic, "others", stream="orders")
    assert inside("init", other, "--apply").returncode == 0
    said = inside("check", other)
    assert (said.returncode, "it is another table, and has none of them" in said.stdout) == (1, True)
    with pytest.raises(StreamFailed, match="it is another table"):
        run_inline(other)


@pytest.mark.long
def test_check_names_a_table_whose_filling_the_stream_does_not_know(place: Place) -> None:
    """A table that was made like it has the same comment, and another stream may use that one."""
    topic = fresh_topic()
    place.kafka.create_topic(topic, 1)
    produce(place.kafka, recorded(topic, [mysql("c", {"id": 1}, None, {"id": 1, "v": "a"}, 1)]))
    config = place.config(topic, "orders", stream="orders")
    assert inside("init", config, "--apply").returncode == 0
    run_inline(config)
    note = fill_note({"stream": "orders", "refilled": [asdict(TableRefilled("another", 0, 5))], "results": []})
    place.client.command(f"ALTER TABLE {place.database}.orders MODIFY COMMENT '{note}'")
    said = inside("check", config)
    assert (said.returncode, "was filled by a run that was killed" in said.stdout) == (1, True)
    with pytest.raises(StreamFailed, match="was filled by a run that was killed"):
        run_inline(config)
    place.client.command(f"CREATE TABLE {place.database}.copied AS {place.database}.orders")
    run_inline(place.config(topic, "copied", stream="copied"))
    assert place.rows("SELECT id, v FROM {db}.copied FINAL") == [{"id": 1, "v": "a"}]
