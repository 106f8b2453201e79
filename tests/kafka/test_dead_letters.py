"""``ch_sink dead-letters``: records that could not be applied are applied later, in their place among the changes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from ch_sink.clickhouse import ClickHouseDeadLetters, ClickHouseLedger, ClickHouseStreamStates
from ch_sink.ports import Alive
from ch_sink.stream import standing
from ch_sink.stream.claims import forget
from tests.support import plain_job
from tests.support.event import event, row
from tests.support.fixtures import Recorded
from tests.support.kafka import fresh_topic, produce
from tests.support.ledgers import intent
from tests.support.sink import Place, inside

pytestmark = [pytest.mark.integration, pytest.mark.kafka]

ENGINES = [
    "replacing",
    pytest.param("sign-replacing", marks=pytest.mark.long),
]
UNORDERED = [
    "collapsing",
    pytest.param("versioned-collapsing", marks=pytest.mark.long),
    "append",
]
HISTORY: list[tuple[int, bytes | None]] = [
    (1, event("c", row(1, 1), pos=1)),
    (2, event("c", row(2, 300), pos=2)),  # does not fit
    (3, event("c", row(3, 3), pos=3)),
    (1, event("u", row(1, 301), row(1, 1), pos=4)),  # does not fit, and a newer change follows
    (1, event("u", row(1, 5), row(1, 301), pos=5)),
    (4, event("c", row(4, 302), pos=6)),  # does not fit, and a delete follows
    (4, event("d", None, row(4, 302), pos=7)),
    (3, event("u", row(3, 303), row(3, 3), pos=8)),  # does not fit
    (3, event("u", row(3, 304), row(3, 303), pos=9)),  # nor does this
]
SOURCE = {1: 5, 2: 300, 3: 304}


class Stream:
    """A topic and its table, whose column ``v`` is too narrow at first."""

    def __init__(self, place: Place, engine: str) -> None:
        self.place, self.topic = place, fresh_topic("letters")
        place.kafka.create_topic(self.topic, 1)
        self.produced = 0
        self.produce(HISTORY[:1])
        self.config = place.config(self.topic, "t")
        done = inside("init", self.config, "--apply", "--set", f"engine={engine}")
        assert done.returncode == 0, done.stderr
        self.alter("Nullable(Int8)")
        self.produce(HISTORY[1:])
        self.run()

    def produce(self, events: list[tuple[int, bytes | None]]) -> None:
        first = self.produced
        self.produced += len(events)
        made = [
            Recorded(self.topic, 0, first + n, 0, json.dumps({"id": key}).encode(), value, ())
            for n, (key, value) in enumerate(events)
        ]
        produce(self.place.kafka, made, self.topic)

    def alter(self, kind: str) -> None:
        self.place.client.command(f"ALTER TABLE {self.place.database}.t MODIFY COLUMN v {kind}")

    def run(self) -> None:
        plain_job.main(str(self.config), "1000", "1")

    def ask(self, *words: str, code: int = 0) -> Any:
        done = inside("dead-letters", words[0], self.config, *words[1:], "--json")
        assert done.returncode == code, done.stderr
        (stream,) = json.loads(done.stdout)["streams"]
        return stream

    @property
    def rows(self) -> dict[int, int]:
        found = self.place.rows("SELECT id, v FROM {db}.t_current")
        assert len({r["id"] for r in found}) == len(found), found
        return {r["id"]: r["v"] for r in found}

    @property
    def stored(self) -> list[dict[str, Any]]:
        """What became of each letter, by offset."""
        return self.place.rows(
            "SELECT offset, outcome, length(value) > 0 AS kept FROM {db}.ch_sink_dead_letters FINAL ORDER BY offset"
        )


@pytest.fixture(params=ENGINES)
def stream(place: Place, request: pytest.FixtureRequest) -> Stream:
    return Stream(place, request.param)


def outcomes(stream: Stream) -> list[str]:
    return [r["outcome"] for r in stream.stored]


def test_after_the_table_was_mended_a_retry_makes_it_equal_to_its_source(stream: Stream) -> None:
    assert stream.rows == ({1: 5, 3: 3})
    listed = stream.ask("list")
    assert [(x["offset"], x["column"]) for x in listed["dead_letters"]] == [(o, "v") for o in (8, 7, 5, 3, 1)]
    checked = inside("verify", stream.config, "--json", "--patience", "0")
    assert (checked.returncode, json.loads(checked.stdout)["streams"][0]["dead_letters"]) == (0, 5), checked.stderr
    assert stream.ask("retry", code=1)["applied"] == 0  # nothing was mended yet
    assert stream.rows == {1: 5, 3: 3}
    stream.alter("Nullable(Int32)")
    done = stream.ask("retry")
    assert (done["applied"], done["superseded"], done["failed"]) == (3, 2, [])
    assert stream.rows == SOURCE
    assert outcomes(stream) == ["applied", "superseded", "superseded", "applied", "applied"]
    assert all(r["kept"] for r in stream.stored)
    before = stream.place.count("t")
    assert stream.ask("retry")["applied"] == 0
    assert stream.ask("list")["count"] == 0
    assert (stream.rows, stream.place.count("t")) == (SOURCE, before)
    stream.produce([(2, event("u", row(2, 7), row(2, 300), pos=10)), (3, event("d", None, row(3, 304), pos=11))])
    stream.run()
    assert stream.rows == {1: 5, 2: 7}


@pytest.mark.long
def test_values_that_were_withheld_are_read_from_kafka_though_nothing_is_masked_now(stream: Stream) -> None:
    letters = f"{stream.place.database}.ch_sink_dead_letters"
    stream.place.client.command(f"ALTER TABLE {letters} UPDATE value = '' WHERE 1", settings={"mutations_sync": 2})
    stream.alter("Nullable(Int32)")
    assert stream.ask("retry")["failed"] == []
    assert stream.rows == SOURCE


@pytest.mark.long
@pytest.mark.parametrize("stream", UNORDERED, indirect=True)
def test_letters_of_a_table_whose_versions_do_not_decide_are_repaired_by_their_keys(stream: Stream) -> None:
    stream.alter("Nullable(Int32)")
    failed = stream.ask("retry", code=1)["failed"]
    assert [x["offset"] for x in failed] == [1, 3, 5, 7, 8]
    assert {"ch_sink repair CONFIG --key KEY --apply" in x["reason"] for x in failed} == {True}
    assert stream.rows == {1: 5, 3: 3}
    done = inside("repair", stream.config, "--key", '{"id": 2}', "--apply", "--patience", "0")
    assert done.returncode == 0, done.stderr
    assert stream.rows == {1: 5, 2: 300, 3: 3}
    assert "ch_sink dead-letters drop CONFIG --at PARTITION:OFFSET" in failed[0]["reason"]
    assert stream.ask("drop", "--at", "0:1")["dropped"] == 1
    assert [x["offset"] for x in stream.ask("list")["dead_letters"]] == [8, 7, 5, 3]
    for place, said in (("0:1", "no open dead letter at 0:1"), ("1", "is not PARTITION:OFFSET")):
        refused = inside("dead-letters", "drop", stream.config, "--at", place)
        assert (refused.returncode, said in refused.stderr) == (2, True), refused.stderr
    assert stream.ask("list")["count"] == 4


@pytest.mark.long
@pytest.mark.parametrize("stream", ["replacing"], indirect=True)
def test_a_retry_that_is_killed_after_its_inserts_is_repeated_without_a_trace(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream.alter("Nullable(Int32)")

    def dies(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ClickHouseDeadLetters, "settle", dies)
        patched.setattr("ch_sink.clickhouse.ledger.ClickHouseLedger.release", lambda ledger: forget_claim(ledger))
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            inside_raw("dead-letters", "retry", stream.config)
    assert stream.ask("list")["count"] == 5
    stored = signed(stream)
    assert stream.rows == SOURCE
    stream.ask("retry")
    assert stream.rows == SOURCE
    assert signed(stream) == stored
    assert stream.ask("list")["count"] == 0


@pytest.mark.long
@pytest.mark.parametrize("stream", ["replacing"], indirect=True)
def test_a_letter_of_an_earlier_epoch_does_not_beat_the_row_of_a_later_one(stream: Stream) -> None:
    """The source was reset: its positions begin again, below that of the letter."""
    stream.produce([(9, event("c", row(9, 300), pos=500)), (9, event("u", row(9, 4), pos=510))])
    stream.run()
    stream.produce([(9, event("u", row(9, 8), row(9, 300), pos=3)), (5, event("c", row(5, 305), pos=4))])
    stream.run()
    stream.produce([(1, event("u", row(1, 6), row(1, 5), pos=5))])
    stream.run()
    stream.alter("Nullable(Int32)")
    done = stream.ask("retry")
    assert done["failed"] == []
    assert stream.rows == SOURCE | {9: 8, 5: 305, 1: 6}
    # A change of now still wins over the letter that was given its place in the later epoch.
    stream.produce([(5, event("u", row(5, 1), row(5, 305), pos=6))])
    stream.run()
    assert stream.rows == SOURCE | {9: 8, 5: 1, 1: 6}


@pytest.mark.long
@pytest.mark.parametrize("stream", ["replacing"], indirect=True)
def test_nothing_is_retried_while_a_job_keeps_the_stream_and_dropped_letters_stay_in_the_table(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing, "_UNHEARD", 0.2)
    monkeypatch.setattr(standing, "_WAIT", 0.2)
    place, name = stream.place, f"{stream.topic}:{stream.place.database}.t"
    stream.alter("Nullable(Int32)")
    job = ClickHouseLedger(place.client, place.database, "ch_sink_ledger", name)
    job.claim("a job on this host")
    refused = inside("dead-letters", "retry", stream.config)
    assert refused.returncode == 1
    assert "is owned by process" in refused.stderr
    job.release()
    with mock.patch("socket.gethostname", return_value="elsewhere"):
        job.claim("a job on another host")
    job.intents([replace(intent(900, 910), topic_id=job.history(1)[0].topic_id)])
    states = ClickHouseStreamStates(place.client.settings, place.database, "ch_sink_ledger")
    states.beat({name: Alive("run", "elsewhere", 1, "x")})
    refused = inside("dead-letters", "retry", stream.config)
    assert "does not pause: its batch is still running" in refused.stderr
    states.beat({name: Alive("run", "", 1, "x")})
    job.release()
    assert stream.rows == {1: 5, 3: 3}
    shown = stream.ask("show", "--limit", "1")
    assert json.loads(shown["dead_letters"][0]["value"])["after"] == {"id": 3, "v": 304}
    assert stream.ask("drop", "--kind", "decode")["dropped"] == 0
    assert stream.ask("drop")["dropped"] == 5
    assert outcomes(stream) == ["dropped"] * 5
    assert all(r["kept"] for r in stream.stored)
    assert stream.ask("list")["count"] == 0


def forget_claim(ledger: Any) -> None:
    forget(ledger.stream, ledger._claim.run_id)


def inside_raw(*words: str | Path) -> None:
    assert inside(*words).returncode != 0
    raise SystemExit(1)


def signed(stream: Stream) -> Any:
    """The rows behind the view."""
    return stream.place.rows("SELECT * EXCEPT _version FROM {db}.t FINAL ORDER BY ALL")
