"""`backfill` on every engine: the topic's snapshot in bulk, and the stream goes on behind it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from ch_sink.clickhouse import ClickHouseHandover, ClickHousePending, Client
from ch_sink.errors import StreamFailed
from ch_sink.model.change import Records
from ch_sink.testing import MemoryLedger
from ch_sink.testing.memory_states import MemoryStreamStates
from ch_sink.trust.backfill import Backfilled, backfilled
from ch_sink.trust.refill import Refill
from ch_sink.trust.successor import SUFFIX
from tests.support.busy import ENGINES, feed_of
from tests.support.choose import some
from tests.support.local_load import LocalLoad
from tests.support.recorded import equal
from tests.support.stream import Feed
from tests.support.trust import subject_of

pytestmark = pytest.mark.integration

KEY = ("id", "k")


def leading(records: Mapping[int, Records]) -> dict[int, int]:
    """Partition → offset of the first record that is no row of the snapshot."""
    found = {}
    for p, part in records.items():
        ops = [json.loads(v)["op"] if v else None for v in part.values]
        found[p] = next((int(o) for o, op in zip(part.offsets, ops, strict=True) if op != "r"), len(ops))
    return found


@dataclass
class Case:
    client: Client
    database: str
    feed: Feed
    small: int = 50
    """Offsets of a chunk."""
    states: MemoryStreamStates = field(default_factory=MemoryStreamStates)
    said: list[str] = field(default_factory=list)
    shown: list[tuple[int, int]] = field(default_factory=list)

    @property
    def refill(self) -> Refill:
        stream = self.feed.name
        subject = subject_of(self.client, self.database, self.feed, "mariadb-busy-json_plain", KEY)
        subject = replace(subject, settings=replace(subject.settings, chunk_offsets=self.small))
        pending = ClickHousePending(self.client, self.database, "ch_sink_pending", stream)
        handover = ClickHouseHandover(self.client, self.database, "ch_sink_handover", stream, subject.table)
        return Refill(subject, self.states, pending, handover, patience=0)

    @property
    def load(self) -> LocalLoad:
        return LocalLoad(self.client, self.refill.subject, self.feed.letters_of)

    def backfill(self, load: LocalLoad | None = None, **more: Any) -> Backfilled:
        return backfilled(
            self.refill, lambda: load or self.load, apply=True, say=self.said.append,
            progress=lambda done, of: self.shown.append((done, of)), **more,
        )  # fmt: skip

    def goes_on(self, done: Backfilled) -> None:
        """The stream reads the rest of the topic."""
        self.feed.at |= done.start
        self.feed.run()
        self.feed.runner.stop()

    def rows(self, sql: str) -> list[tuple[object, ...]]:
        return [tuple(r.values()) for r in self.client.rows(sql.format(f"{self.database}.acct"))]

    def differs(self) -> list[str]:
        return equal(self.client, self.database, "mariadb-busy", "mariadb", "acct")

    def tables(self) -> list[tuple[object, ...]]:
        return self.rows(f"SELECT name FROM system.tables WHERE database = '{self.database}' AND name LIKE 'acct%'")


def case(client: Client, database: str, engine: str = "replacing", **spec: object) -> Case:
    return Case(client, database, feed_of(client, database, "mariadb", "acct", engine, **spec))


@pytest.mark.parametrize("engine", some([(e,) for e in (*ENGINES, "append")], [("replacing",)]))
def test_the_snapshot_is_loaded_and_the_stream_goes_on_behind_it(client: Client, database: str, engine: str) -> None:
    it = case(client, database, engine, partition_by="id % 5")
    done = it.backfill(wave=300)
    assert done.start == leading(it.feed.records)
    assert done.rows == sum(done.start.values()) == it.rows("SELECT count() FROM {}")[0][0]
    assert it.refill.subject.reached(it.refill.subject.topic.state("").topic_id).applied == done.start
    # One block for each partition and wave, where the stream would store one for each chunk of 50.
    assert done.blocks <= 5 * (len(it.shown) - 1)
    assert it.shown[0][0] == 0
    assert not any("read anew" in text for text in it.said)
    assert it.shown[-1] == (done.rows, done.rows)
    it.goes_on(done)
    assert it.differs() == []
    assert [name for (name,) in it.tables() if str(name).endswith(SUFFIX)] == []


def test_rows_are_those_that_the_stream_would_have_stored(client: Client, database: str) -> None:
    it = case(client, database)
    done = it.backfill(wave=300)
    columns = "id, k, _version, sipHash64(*)"
    loaded = it.rows(f"SELECT {columns} FROM {{}} ORDER BY id, k")
    client.command(f"CREATE TABLE {database}.aside AS {database}.acct")
    client.command(f"INSERT INTO {database}.aside SELECT * FROM {database}.acct")
    client.command(f"TRUNCATE TABLE {database}.acct")
    it.feed.book.__init__(it.feed.name)  # type: ignore[misc]
    for p, end in done.start.items():
        it.feed.chunk(p, end)
    it.feed.runner.stop()
    assert it.rows(f"SELECT {columns} FROM {{}} ORDER BY id, k") == loaded


class Killed(BaseException):
    """The process ends."""


@pytest.mark.parametrize("engine", some([("collapsing",), ("append",)], [("append",)]))
def test_a_run_that_was_killed_goes_on_with_the_wave_in_which_it_was(
    client: Client, database: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = case(client, database, engine)

    def die(wave: int) -> None:
        if wave == 1:
            raise Killed

    with pytest.raises(Killed):
        it.backfill(replace(it.load, stored=die), wave=300)
    assert "the next run goes on" in it.said[-1]
    assert it.rows("SELECT count() FROM {}") == [(0,)]
    load = replace(it.load, slots=5, waves=[])
    done = it.backfill(load, wave=700)
    assert load.waves[0].number == 1
    assert done.rows == sum(done.start.values()) == it.rows("SELECT count() FROM {}")[0][0]
    it.goes_on(done)
    assert it.differs() == []


@pytest.mark.long
def test_one_that_was_killed_between_the_exchange_and_the_ledger_is_ended(client: Client, database: str) -> None:
    class Ending(MemoryLedger):
        def results(self, results: object) -> None:
            raise Killed

    it = case(client, database)
    refill, book = it.refill, it.feed.book
    dying = replace(refill, subject=replace(refill.subject, ledger=Ending(it.feed.name, beside=book)))
    with pytest.raises(Killed):
        backfilled(dying, lambda: it.load, apply=True)
    done = it.backfill()
    assert "killed before the ledger knew" in it.said[0]
    assert done.start == leading(it.feed.records)
    it.goes_on(done)
    assert it.differs() == []


def test_changes_in_the_middle_of_the_snapshot_end_it_there(client: Client, database: str) -> None:
    """An incremental snapshot: single events do not show that others are between them."""
    it = case(client, database)
    p = next(p for p, end in leading(it.feed.records).items() if end > 120)
    part = it.feed.records[p]
    values = list(part.values)
    change = json.loads(values[101] or b"{}")
    values[101] = json.dumps({**change, "op": "u", "before": change["after"]}).encode()
    it.feed.records[p] = replace(part, values=values)
    done = it.backfill(wave=300)
    assert done.start[p] == 101
    it.goes_on(done)
    assert it.differs() == []


def test_positions_that_step_back_are_read_one_range_after_the_other(client: Client, database: str) -> None:
    """A snapshot that was begun again after the binary log was reset: the epoch rises in the middle."""
    it = case(client, database)
    p = next(p for p, end in leading(it.feed.records).items() if end > 120)
    part = it.feed.records[p]
    values = list(part.values)
    for i in range(80):
        value = json.loads(values[i] or b"{}")
        value["source"]["file"] = "mysql-bin.000999"
        values[i] = json.dumps(value).encode()
    it.feed.records[p] = replace(part, values=values)
    done = it.backfill(wave=1000)
    assert any("one after the other" in text for text in it.said)
    epochs = "SELECT uniqExact(bitShiftRight(_version, 112)) FROM {}"
    assert it.rows(epochs) == [(2,)]
    assert done.rows == sum(done.start.values())


@pytest.mark.long
def test_a_key_that_comes_twice_is_left_to_the_stream_where_rows_are_looked_up(client: Client, database: str) -> None:
    for engine, refused in (("collapsing", True), ("replacing", False)):
        client.command(f"DROP TABLE IF EXISTS {database}.acct SYNC")
        it = case(client, database, engine)
        p, end = max(leading(it.feed.records).items(), key=lambda pair: pair[1])
        part, first = it.feed.records[p], np.arange(end)
        again = part.take(np.r_[first, first[:10], np.arange(end, len(part))])
        it.feed.records[p] = replace(again, offsets=np.arange(len(again), dtype=np.int64))
        it.feed.ends[p] = len(again)
        if refused:
            with pytest.raises(StreamFailed, match="a key occurs twice"):
                it.backfill()
            assert it.tables() == [("acct",)] or it.tables() == [("acct",), ("acct_current",)]
        else:
            it.goes_on(it.backfill())
            assert it.differs() == []


@pytest.mark.long
def test_a_bad_record_becomes_a_dead_letter_or_ends_it(client: Client, database: str) -> None:
    it = case(client, database)
    p, end = max(leading(it.feed.records).items(), key=lambda pair: pair[1])
    values = list(it.feed.records[p].values)
    value = json.loads(values[3] or b"{}")
    value["after"]["id"] = "no number"
    values[3] = json.dumps(value).encode()
    it.feed.records[p] = replace(it.feed.records[p], values=values)
    with pytest.raises(StreamFailed):
        it.backfill()
    policy = it.refill.subject.settings.policy
    it.feed.runner.settings = replace(
        it.feed.runner.settings,
        policy=replace(policy, changes=replace(policy.changes, on_bad_record="dead_letter")),
    )
    done = it.backfill()
    assert (done.dead_letters, it.feed.letters) == (1, 1)
    assert done.rows == sum(done.start.values()) - 1
    assert done.start[p] == end


@pytest.mark.long
def test_what_cannot_be_backfilled_is_refused(client: Client, database: str) -> None:
    it = case(client, database)
    p, kept = next(iter(it.feed.records)), it.feed.records
    behind = kept[p].slice(leading(kept)[p], len(kept[p]))
    it.feed.records = {p: replace(behind, offsets=behind.offsets - behind.offsets[0])}
    with pytest.raises(StreamFailed, match="does not begin with rows of a snapshot"):
        it.backfill()
    it.feed.records = kept
    plan = backfilled(it.refill, lambda: it.load, apply=False)
    assert (plan.applied, plan.rows) == (False, sum(leading(kept).values()))
    it.goes_on(it.backfill())
    with pytest.raises(StreamFailed, match="it has rows"):
        it.backfill()


def test_a_record_that_was_sent_twice_is_one_row_also_where_a_range_begins(client: Client, database: str) -> None:
    it = case(client, database, "append")
    for p, part in it.feed.records.items():
        places = np.arange(len(part))
        places[100] = 99
        it.feed.records[p] = replace(part.take(places), offsets=part.offsets)
    load = it.load
    done = it.backfill(load)
    assert {task.start for task in load.waves[1].tasks} == {50, 100}
    assert done.rows == sum(done.start.values()) - len(done.start) == it.rows("SELECT count() FROM {}")[0][0]
