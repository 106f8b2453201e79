"""A table that is created anew under the name of the one that a stream has filled: the stream sees it."""

import pytest

from ch_sink.clickhouse import Client
from ch_sink.errors import StreamFailed
from ch_sink.trust.resync import resynced
from tests.support.hand import insert, row, update
from tests.support.hand_commands import Hand, each_of, hand

pytestmark = pytest.mark.integration

EVENTS = (insert(1, "a", 100), insert(2, "b", 110), update(row(1, "a"), row(1, "c"), 120))


def created_anew(client: Client, database: str, engine: str) -> Hand:
    it = hand(client, database, engine, EVENTS)
    it.read((0, 2))
    (made,) = client.rows(f"SHOW CREATE TABLE {database}.t")
    client.command(f"DROP TABLE {database}.t SYNC")
    client.command(next(iter(made.values())))
    return it


@pytest.mark.sampled(1)
@each_of("engine", ("replacing", "sign", "collapsing", "versioned", "append"), "collapsing", "append")
def test_a_stream_stops_and_resync_fills_the_table(client: Client, database: str, engine: str) -> None:
    it = created_anew(client, database, engine)
    for _ in range(2):
        with pytest.raises(StreamFailed, match="lacks rows that the stream has stored: it is another table") as error:
            it.read_all()
    assert "ch_sink resync CONFIG" in (error.value.hint or "")
    assert it.stored() == []
    resynced(it.refill, apply=True, against="topic")
    it.read_all()
    assert it.view() == [(1, "c"), (2, "b")]


def test_a_restored_table_is_another_one_and_has_its_rows(client: Client, database: str) -> None:
    it = hand(client, database, "collapsing", EVENTS)
    it.read((0, 2))
    client.command(f"CREATE TABLE {database}.kept CLONE AS {database}.t")
    client.command(f"DROP TABLE {database}.t SYNC")
    client.command(f"RENAME TABLE {database}.kept TO {database}.t")
    it.read_all()
    assert it.view() == [(1, "c"), (2, "b")]
