"""Commands that write refuse beside another one, and write nothing once they are not alone any more."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from ch_sink.clickhouse import ClickHouseLedger, Client
from ch_sink.config import load_job
from ch_sink.errors import ChSinkError, LedgerConflict, StreamFailed
from ch_sink.local.clickhouse.launch import EmbeddedClickHouse
from ch_sink.ports import Command
from ch_sink.trust.alone import alone
from ch_sink.trust.one_key import erased
from ch_sink.trust.repair import repaired
from ch_sink.trust.resync import resynced
from ch_sink.trust.subject import Options
from ch_sink.trust.successor import Successor
from tests.support.hand import delete, insert, row
from tests.support.hand_commands import Hand, hand
from tests.support.hand_steps import Rows, lose
from tests.support.sink import inside
from tests.support.state_tables import create_statement

pytestmark = pytest.mark.integration

EVENTS = [insert(1, "a", 100), insert(2, "b", 110), insert(3, "c", 120), delete(row(3, "c"), 130)]
LEFT = [(1, "a"), (2, "b")]


@pytest.fixture
def config(tmp_path: Path, client: Client, clickhouse: EmbeddedClickHouse, database: str) -> Path:
    """A stream at whose table a command of another host writes. Neither the table nor Kafka is there."""
    client.command(create_statement("ledger", database, "ch_sink_ledger"))
    ClickHouseLedger(client, database, "ch_sink_ledger", "s").note(Command("0a", "resync", "host-b", 7, "1", "monday"))
    file = tmp_path / "o.yaml"
    settings = {
        "stream": "s",
        "purge_after": "1d",
        "kafka": {"topic": "shop.orders", "bootstrap.servers": "127.0.0.1:1"},
        "clickhouse": {"url": clickhouse.url, "database": database, "table": "o"},
    }
    file.write_text(yaml.safe_dump(settings))
    return file


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "words",
    [("resync",), ("resync", "--into", "other"), ("repair",), ("purge",), ("purge", "--key", '{"id": 1}')],
    ids=" ".join,
)
def test_a_command_refuses_by_name_before_it_reads_anything(words: tuple[str, ...], config: Path) -> None:
    done = inside(words[0], config, *words[1:], "--apply")
    assert done.returncode == 1
    assert ".o since monday: process 7 on host host-b" in done.stderr


def test_letters_are_not_dropped_beside_a_command_that_may_apply_them(
    config: Path, client: Client, database: str
) -> None:
    client.command(create_statement("dead_letters", database, "ch_sink_dead_letters"))
    done = inside("dead-letters", "drop", config)
    assert done.returncode == 1
    assert ".o since monday: process 7 on host host-b" in done.stderr


def test_a_letter_that_one_of_the_streams_lacks_is_dropped_in_none(config: Path, client: Client, database: str) -> None:
    letters = f"{database}.ch_sink_dead_letters"
    client.command(create_statement("dead_letters", database, "ch_sink_dead_letters"))
    client.command(f"INSERT INTO {letters} (stream, topic_id, partition, offset) VALUES ('a', 'id', 0, 1)")
    files = [config.with_name(f"{name}.yaml") for name in "ab"]
    for file in files:
        file.write_text(config.read_text().replace("stream: s\n", f"stream: {file.stem}\n"))
    done = inside("dead-letters", "drop", *files, "--at", "0:1")
    assert "stream 'b' has no open dead letter at 0:1" in done.stderr
    assert client.rows(f"SELECT count() AS n FROM {letters} FINAL WHERE retried IS NULL") == [{"n": 1}]


def test_what_a_refusal_names_ends_a_command_of_a_host_that_is_gone(config: Path, client: Client) -> None:
    stream = load_job(config).only()
    with pytest.raises(StreamFailed, match="resync writes to") as caught, alone(stream, "repair", apply=True):
        pass
    with alone(stream, "repair", apply=False):
        pass
    client.command((caught.value.hint or "").rpartition("say so: ")[2], settings={"mutations_sync": 2})
    with alone(stream, "repair", apply=True) as still_alone:
        still_alone()


def not_alone() -> None:
    raise StreamFailed("another command may write")


def resync(it: Hand) -> None:
    refill = it.refill
    resynced(replace(refill, subject=replace(refill.subject, still_alone=not_alone)), apply=True)


def repair(it: Hand) -> None:
    subject = replace(it.subject, still_alone=not_alone)
    repaired(subject, Options(patience=0, against="source"), apply=True)


def erase(it: Hand) -> None:
    erased(replace(it.subject, still_alone=not_alone), it.own, {"id": 3}, apply=True)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("command", [resync, repair, erase])
def test_a_command_that_is_not_alone_any_more_writes_nothing(
    client: Client, database: str, command: Callable[[Hand], None]
) -> None:
    it = hand(client, database, "replacing", EVENTS)
    it.read_all()
    lose(it, 1)
    it.source = Rows(LEFT)
    before = it.stored()
    with pytest.raises(ChSinkError, match="another command may write"):
        command(it)
    assert it.stored() == before
    it.topic([*EVENTS, insert(4, "d", 140)])
    it.read_all()
    assert it.view() == [(2, "b"), (4, "d")]


def test_a_filling_whose_stream_another_job_has_taken_is_not_put_in_place(
    client: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process was frozen just before the exchange, and the stream has gone on."""
    it = hand(client, database, "replacing", EVENTS)
    it.read_all()
    it.source = Rows(LEFT)
    note = Successor.note

    def frozen(self: Successor, noted: dict[str, object]) -> None:
        note(self, noted)
        it.feed.book._book.claims.append(
            replace(it.feed.book._book.claims[-1], number=99, run_id="elsewhere", host="b")
        )
        first = f"SELECT * FROM {database}.t WHERE id = 1"
        client.command(f"INSERT INTO {database}.t SELECT * REPLACE(4 AS id, 'd' AS v) FROM ({first})")

    monkeypatch.setattr(Successor, "note", frozen)
    with pytest.raises(LedgerConflict, match="elsewhere"):
        resynced(it.refill, apply=True)
    assert it.view() == [*LEFT, (4, "d")]


def test_a_filling_of_another_table_that_fails_leaves_the_rows_of_the_next_one(client: Client, database: str) -> None:
    it = hand(client, database, "append", EVENTS)
    it.read_all()
    client.command(f"CREATE TABLE {database}.other AS {database}.t")

    def fails() -> None:
        client.command(f"INSERT INTO {database}.other SELECT * FROM {database}.t")
        raise ZeroDivisionError

    it.source, refill = Rows(LEFT, then=fails), it.refill
    with pytest.raises(ZeroDivisionError):
        resynced(replace(refill, subject=replace(refill.subject, still_alone=not_alone)), apply=True, into="other")
    assert client.rows(f"SELECT count() AS n FROM {database}.other")[0]["n"] > 0
