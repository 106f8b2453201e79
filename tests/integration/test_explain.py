"""`explain` names the rule that decided about each event, in the cases that are hard to get right."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from ch_sink.clickhouse import Client
from ch_sink.decode import Decoder
from ch_sink.errors import StreamFailed
from ch_sink.model.policy import ColumnPolicy, policy_of
from ch_sink.model.values import TopicState
from ch_sink.pipeline.chunks import Chunk, cut
from ch_sink.stream.tasks import RangeTask
from ch_sink.trust.biography import Biography
from ch_sink.trust.biography import Event as Explained
from ch_sink.trust.key import wanted_key
from ch_sink.trust.one_key import Reading, biography, erased, life_of, stored_rows
from ch_sink.trust.own_tables import Noted
from tests.support.hand import (
    APPEND,
    COLLAPSING,
    ENGINES,
    OWN,
    PLACEHOLDER,
    WINDOW,
    Event,
    HandFed,
    Make,
    delete,
    each_collapsing,
    insert,
    key,
    key_change,
    mysql,
    postgres,
    row,
    update,
)
from tests.support.hand_commands import MARKING, Hand, each_of, hand, made
from tests.support.hand_steps import BIG, lettered, retried, widen

pytestmark = pytest.mark.integration


@dataclass(frozen=True, slots=True)
class ByHand:
    """The topic of hand-written events."""

    fed: HandFed

    def state(self, topic: str) -> TopicState:
        return TopicState(topic, "id", dict.fromkeys(self.fed.log, 0), {p: len(e) for p, e in self.fed.log.items()})

    def chunks(self, task: RangeTask, first: int) -> Iterator[Chunk]:
        records = self.fed._records(task.partition, first, task.end)
        return cut(iter([records]), first, task.end, chunk_offsets=2, chunk_bytes=1 << 20)

    def history(self, partition: int) -> Any:
        return self.fed.sink(partition).ports.history


def explained(
    fed: HandFed,
    wanted: dict[str, Any],
    noted: Noted = Noted(),  # noqa: B008
    *,
    want_before: bool = False,
) -> list[Explained]:
    sought = wanted_key(fed.client, fed.table, wanted)
    decoder = Decoder(fed.table, fed.policy, want_before=want_before)
    return biography(Reading(ByHand(fed), "t", fed.target, decoder), sought, noted).events


def rules(fed: HandFed, number: int = 1, noted: Noted = Noted()) -> list[tuple[str, str]]:  # noqa: B008
    return [(event.op, event.rule) for event in explained(fed, key(number), noted)]


def test_case_01_the_last_change_of_a_transaction_is_newer(make: Make) -> None:
    fed = make("replacing")
    fed.feed([insert(1, "0", 500), *(update(row(1, str(i)), row(1, str(i + 1)), 500, row=i) for i in range(2))])
    assert rules(fed) == [("c", "superseded"), ("u", "superseded"), ("u", "newer")]
    first, _, last = explained(fed, key(1))
    assert first.against == replace(last, rule="applied", why="")
    assert first.why == f"offset 2 of partition 0, position {last.position}, has a higher version"
    stored = stored_rows(fed.client, fed.table, wanted_key(fed.client, fed.table, key(1)).condition)
    assert stored[-1]["_is_deleted"] == "0"


def test_case_02_a_late_commit_is_newer(make: Make) -> None:
    fed = make("replacing")
    fed.feed([postgres("c", key(1), None, row(1, "a"), 100, 90), postgres("u", key(1), None, row(1, "b"), 400, 300)])
    fed.feed([postgres("u", key(1), None, row(1, "late"), 900, 150)])
    assert rules(fed) == [("c", "superseded"), ("u", "superseded"), ("u", "newer")]


def test_case_03_the_first_update_beats_the_snapshot_row(make: Make) -> None:
    """Only the update has a GTID; both are versioned by their place in the binlog."""
    fed = make("replacing")
    fed.feed([mysql("r", key(1), None, row(1, "old"), 154, snapshot="last", gtid=None)])
    fed.feed([update(row(1, "old"), row(1, "new"), 219, gtid="3e11fa47-71ca-11e1-9e33-c80aa9429562:1")])
    assert rules(fed) == [("r", "superseded"), ("u", "newer")]


def test_case_04_positions_that_step_back_begin_an_epoch(make: Make) -> None:
    fed = make("replacing")
    rotated = update(row(1, "a"), row(1, "b"), 4, file="mysql-bin.000004")
    failed_over = update(row(1, "b"), row(1, "c"), 4, file="binlog.000001")
    fed.feed([insert(1, "a", 4000), rotated, failed_over], cut=1)
    assert rules(fed) == [("c", "superseded"), ("u", "superseded"), ("u", "newer")]
    found = explained(fed, key(1))
    assert [event.epoch for event in found] == [0, 0, 1]
    assert "later epoch" in found[1].why


def test_case_05_a_stretch_that_is_sent_again_is_re_delivered(make: Make) -> None:
    fed = make("replacing")
    changes = [insert(1, "a", 500), update(row(1, "a"), row(1, "b"), 600)]
    fed.feed([*changes, *changes])
    assert rules(fed) == [("c", "superseded"), ("u", "superseded"), ("c", "re-delivered"), ("u", "newer")]
    again = explained(fed, key(1))[2]
    assert again.why == "an identical record is at offset 0"
    assert again.against is not None
    assert again.against.offset == 0


@each_collapsing
def test_case_06_an_update_without_before_is_newer(make: Make, engine: str) -> None:
    fed = make(engine)
    partial = Event(key(1), {**dict(update(row(1, "b"), row(1, "c"), 300).value or {}), "before": None})
    fed.feed([insert(1, "a", 100), update(row(1, "not what is stored"), row(1, "b"), 200), partial])
    assert rules(fed) == [("c", "superseded"), ("u", "superseded"), ("u", "newer")]


def test_case_07_a_key_change_hands_the_row_over(make: Make) -> None:
    fed = make("replacing")
    halves = key_change(delete(row(1, "a"), 700), insert(2, "a", 700))
    fed.feed([insert(1, "a", 500), *halves])
    assert rules(fed) == [("c", "superseded"), ("d", "handed over")]
    assert rules(fed, 2) == [("c", "newer")]
    assert explained(fed, key(1))[1].why == 'the row went on under the key {"id": 2}'
    assert explained(fed, key(2))[0].why.endswith('this is the row, which came from its old key {"id": 1}')


def test_case_08_a_deleted_row(make: Make) -> None:
    fed = make("replacing")
    fed.feed([insert(1, "a", 500), delete(row(1, "a"), 600)])
    assert rules(fed) == [("c", "superseded"), ("d", "newer")]


def test_case_09_a_value_that_an_event_leaves_out_is_kept(make: Make) -> None:
    fed = make("replacing", more="n Int32")
    created = postgres("c", key(1), None, row(1, "big", n=0), 100, 90)
    fed.feed([created, postgres("u", key(1), None, row(1, PLACEHOLDER, n=1), 200, 190)])
    assert rules(fed) == [("c", "superseded"), ("u", "newer")]
    assert "it keeps its v from before" in explained(fed, key(1))[1].why


def test_case_09_a_create_half_waits_for_its_values(make: Make) -> None:
    fed = make("replacing")
    fed.feed([postgres("c", key(1), None, row(1, "big"), 100, 90)], partition=0)
    delete_half, tombstone, create_half = key_change(
        postgres("d", key(1), None, None, 200, 190), postgres("c", key(2), None, row(2, PLACEHOLDER), 200, 190)
    )
    fed.feed([create_half], partition=1)
    waits = Noted({0: 1, 1: 1}, waiting=frozenset({(1, 0)}))
    assert rules(fed, 2, waits) == [("c", "waiting")]
    fed.feed([delete_half, tombstone], partition=0)
    fed.drain()
    assert rules(fed, 2) == [("c", "newer")]
    assert "old key" in explained(fed, key(2))[0].why


def test_case_10_rows_below_a_truncate(make: Make) -> None:
    fed = make("replacing")
    truncate = mysql("t", None, None, None, 600)
    fed.feed([insert(1, "a", 500), Event(None, truncate.value), insert(1, "b", 700)])
    assert rules(fed) == [("c", "floor"), ("c", "newer")]


def test_case_11_an_event_of_an_unknown_column_holds_the_stream_up(make: Make) -> None:
    fed = make("replacing")
    fed.feed([insert(1, "a", 100)])
    fed.log[0].append((1, mysql("u", key(1), None, {"id": 1, "name": "b"}, 200)))
    found = explained(fed, key(1), Noted({0: 1}))
    assert [event.rule for event in found] == ["newer", "not read yet"]
    assert "'name'" in found[1].why


def test_case_12_a_key_of_a_time_is_found(make: Make) -> None:
    """Both ways of writing the zone of a moment; a date before 1970."""
    fed = keyed_by(make, "t", "DateTime64(6, 'UTC')")
    fed.feed([by("t", "2024-03-31T01:30:00.000001Z", "a", 100), by("t", "1960-01-01T00:00:00Z", "b", 110)])
    fed.feed([by("t", "2024-03-31T01:30:00.000001Z", "c", 200)])
    assert ruled(fed, {"t": "2024-03-31 01:30:00.000001"}) == ["superseded", "newer"]
    assert ruled(fed, {"t": "1960-01-01 00:00:00"}) == ["newer"]


@pytest.mark.parametrize(
    ("kind", "sent", "asked"),
    [
        ("UInt64", (1 << 64) - 1, (1 << 64) - 1),
        ("Decimal(38, 4)", "GiSbHxCgbJa+qA==", "12345678901234567890.5000"),
        ("UUID", "61f0c404-5cb3-11e7-907b-a6006ad3dba0", "61F0C404-5CB3-11E7-907B-A6006AD3DBA0"),
    ],
)
def test_case_13_a_key_of_a_large_number_is_found(make: Make, kind: str, sent: Any, asked: Any) -> None:
    fed = keyed_by(make, "k", kind)
    fed.feed([by("k", sent, "a", 100), by("k", sent, "b", 200)])
    assert ruled(fed, {"k": asked}) == ["superseded", "newer"]


def test_case_14_rows_of_a_table_without_a_key_are_counted(client: Client, database: str, own_tables: str) -> None:
    clause, own = APPEND
    ddl = f"(id Int64, v Nullable(String), {own}) ENGINE = {clause} ORDER BY tuple() {WINDOW}"
    fed = HandFed(client, database, own_tables, ddl, ())
    rows = [mysql("c", None, None, row(1, "a"), 100), mysql("c", None, None, row(1, "a"), 110)]
    fed.feed([*rows, mysql("c", None, None, row(2, "b"), 120), mysql("d", None, row(1, "a"), None, 130)])
    found = explained(fed, {"id": 1}, want_before=True)
    assert [(e.op, e.rule) for e in found] == [("c", "counted"), ("c", "counted"), ("d", "counted")]


def keyed_by(make: Make, name: str, kind: str) -> HandFed:
    """A table with a key of another type than a number."""
    return make("replacing", more=f"{name} {kind}", order=name)


def by(name: str, value: Any, v: str, pos: int) -> Event:
    return mysql("c", {name: value}, None, {"id": 0, "v": v, name: value}, pos)


def ruled(fed: HandFed, wanted: dict[str, Any]) -> list[str]:
    return [event.rule for event in explained(fed, wanted)]


def test_case_15_a_dead_letter(make: Make) -> None:
    fed = make("replacing")
    poison = Event(key(1), {"op": "u", "after": {"id": "no number"}, "source": insert(1, "a", 500).value["source"]})  # type: ignore[index]
    fed.feed([insert(1, "a", 500)])
    fed.log[0].append((1, poison))
    assert [rule for _, rule in rules(fed)] == ["newer", "dead letter"]


def test_case_15_a_record_that_never_had_a_readable_change_is_shown_with_its_key(make: Make) -> None:
    """The dead letter comes first: its key is known from a later change."""
    fed = make("replacing")
    poison = Event(key(1), {"op": "c", "after": {"id": "no number"}, "source": insert(1, "a", 500).value["source"]})  # type: ignore[index]
    fed.feed([insert(2, "b", 400)])
    fed.log[0] += [(1, poison), (2, insert(2, "c", 600)), (3, insert(1, "a", 700))]
    assert rules(fed) == [("?", "dead letter"), ("c", "newer")]


def test_case_15_a_dead_letter_whose_values_no_column_holds(make: Make) -> None:
    """What a merge refused is known from the table of dead letters only."""
    fed = make("replacing")
    fed.feed([insert(1, "a", 500), update(row(1, "a"), row(1, "b"), 600)])
    noted = Noted({0: 2}, {(0, 1): "unresolved: v"})
    assert [(e.rule, e.why) for e in explained(fed, key(1), noted)][1] == ("dead letter", "unresolved: v")
    assert rules(fed, noted=noted)[0] == ("c", "newer")
    # A repair or a resync has stored its row since: the letter is still open.
    stored = frozenset(event.version for event in explained(fed, key(1)))
    assert rules(fed, noted=replace(noted, stored=stored)) == [("c", "superseded"), ("u", "newer")]


def test_case_16_the_last_of_many_changes_over_table_partitions(make: Make) -> None:
    fed = make("replacing", more="p Int32", tail="PARTITION BY p")
    moves = [update(row(1, "a", p=i), row(1, "a", p=i + 1), 600 + i) for i in range(5)]
    fed.feed([insert(1, "a", 500, p=0), insert(2, "x", 510, p=3), *moves])
    assert rules(fed) == [("c", "superseded"), *[("u", "superseded")] * 4, ("u", "newer")]


def test_case_17_what_the_stream_has_not_read_yet_decides_nothing(make: Make) -> None:
    """The lag of the consumer group: the topic is ahead of the table."""
    fed = make("replacing")
    fed.feed([insert(1, "a", 500)])
    fed.log[0].append((1, update(row(1, "a"), row(1, "b"), 600)))
    assert rules(fed, noted=Noted({0: 1})) == [("c", "newer"), ("u", "not read yet")]


def test_a_value_that_does_not_fit_its_key_column_is_named(make: Make) -> None:
    fed = make("replacing", more="small Int8")
    for wanted, wrong in (({"id": "seven"}, "Int64"), ({"small": 300}, "Int8"), ({"id": [1]}, "plain value")):
        with pytest.raises(StreamFailed, match=wrong):
            wanted_key(fed.client, fed.table, wanted)
    with pytest.raises(StreamFailed, match="never null"):
        wanted_key(fed.client, fed.table, {"id": None})


@pytest.mark.parametrize(
    ("column", "fits", "other"),
    [
        ("Decimal(9, 2)", "1.230", "1.239"),
        ("Date32", "2020-02-29", "2020-02-31"),
        ("Date", "2020-02-29", "2150-01-01"),
        ("DateTime64(3)", "2020-01-01T00:00:00.12", "2020-01-01 00:00:00.1234"),
        ("DateTime", "2020-01-01", "2020-01-01 00:00:00.5"),
    ],
)
def test_no_key_is_taken_for_another_one(make: Make, column: str, fits: str, other: str) -> None:
    """ClickHouse cuts digits off, and moves days that no month has."""
    fed = make("replacing", more=f"k {column}")
    wanted_key(fed.client, fed.table, {"k": fits})
    with pytest.raises(StreamFailed, match=f"which '{other}' does not fit"):
        wanted_key(fed.client, fed.table, {"k": other})


def test_a_key_that_equals_nothing_is_refused(make: Make) -> None:
    fed = make("replacing", more="k Float64")
    assert wanted_key(fed.client, fed.table, {"k": 0.5})
    for value in ("NaN", float("nan")):
        with pytest.raises(StreamFailed, match="key column 'k': NaN equals nothing"):
            wanted_key(fed.client, fed.table, {"k": value})


def test_a_key_that_the_events_do_not_have_is_named(make: Make) -> None:
    fed = make("replacing")
    fed.feed([insert(1, "a", 500)])
    with pytest.raises(StreamFailed, match="no key column 'nothing'"):
        explained(fed, {"nothing": 1})


def rules_of_key(it: Hand, id_: int = 1, **more: Any) -> list[tuple[int, str]]:
    return [(e.offset, e.rule) for e in life_of(it.subject, it.own, Biography({"id": id_, **more})).events]


@each_of("engine", (*MARKING, *COLLAPSING), "replacing")
def test_a_part_of_a_key_shows_each_key_by_itself(client: Client, database: str, engine: str) -> None:
    clause, own = OWN[engine]

    def event(op: str, part: int, v: str, pos: int) -> Event:
        return mysql(op, {"id": 1, "part": part}, None, row(1, v, part=part), pos)

    events = [event("c", 1, "a", 100), event("c", 2, "b", 110), event("u", 1, "aa", 120)]
    it = made(client, database, (clause, f"part Int64, {own}"), policy_of(), [events], "ORDER BY (id, part)")
    it.read((0, 3))
    assert rules_of_key(it) == [(0, "superseded"), (1, "newer"), (2, "newer")]
    assert rules_of_key(it, part=2) == [(1, "newer")]


@each_of("engine", ENGINES, "sign")
def test_a_key_of_which_no_record_can_be_read(client: Client, database: str, engine: str) -> None:
    """Its letters are shown, and go when it is erased."""
    poison = [Event(key(i), {**(insert(i, "a", 90).value or {}), "after": {"id": "none"}}) for i in (1, 2)]
    it = lettered(client, database, engine, [poison[0], insert(3, "a", 100, n=7), poison[1]])
    it.read((0, 3))
    assert it.feed.letters == 2
    assert rules_of_key(it) == [(0, "dead letter")]
    assert rules_of_key(it, 4) == []
    erased(it.subject, it.own, key(1), apply=True)
    assert [x.letter.offset for x in it.feed.letters_of.list(10)] == [2]


@each_of("engine", ENGINES, "replacing")
def test_a_key_with_an_added_column_of_which_no_record_can_be_read(client: Client, database: str, engine: str) -> None:
    clause, own = OWN[engine]
    added = ColumnPolicy(add=(("_from", "'a'"),), source=("_from",))
    policy = replace(policy_of(on_bad_record="dead_letter"), columns=added)
    poison = [Event(key(i), {**(insert(i, "a", 90).value or {}), "after": {"id": "none"}}) for i in (1, 2)]
    it = made(client, database, (clause, f"_from String, {own}"), policy, [poison], "ORDER BY (_from, id)")
    it.read((0, 2))
    assert rules_of_key(it, _from="a") == [(0, "dead letter")]
    assert rules_of_key(it, _from="b") == []
    subject = replace(it.subject, key=("_from", "id"))
    erased(subject, it.own, {"_from": "a", "id": 1}, apply=True)
    assert [x.letter.offset for x in it.feed.letters_of.list(10)] == [1]


@pytest.mark.sampled(1)
@each_of("engine", ENGINES, "replacing", "collapsing")
def test_a_key_with_an_array(client: Client, database: str, engine: str) -> None:
    """PostgreSQL takes one; a letter whose row has a later change is superseded."""
    clause, own = OWN[engine]
    policy = policy_of(on_bad_record="dead_letter")

    def change(op: str, n: int, pos: int, *tags: int) -> Event:
        return mysql(op, {"id": 1, "tags": tags}, None, row(1, "a", tags=tags, n=n), pos)

    events = [change("c", 7, 100, 1, 2), change("c", 7, 110, 3), change("u", BIG, 120, 1, 2), change("u", BIG, 130, 3)]
    events.append(change("u", 8, 140, 1, 2))
    own = f"tags Array(Int64), n Nullable(UInt8), {own}"
    it = made(client, database, (clause, own), policy, [events], "ORDER BY (id, tags)")
    it.read((0, 5))
    widen(it)
    shown = [(0, "superseded"), (1, "newer"), (2, "dead letter"), (3, "dead letter"), (4, "newer")]
    assert rules_of_key(it) == shown
    if engine in MARKING:
        done = retried(it)
        assert (done.applied, done.superseded, done.failed) == ([3], [2], {})


def test_rows_of_other_streams_in_the_table_are_not_shown(client: Client, database: str) -> None:
    it = hand(client, database, "replacing", [insert(1, "mine", 100)])
    it.read((0, 1))
    client.command(f"INSERT INTO {database}.t VALUES (1, 'another', 1, 0)")
    assert [r["v"] for r in life_of(it.subject, it.own, Biography(key(1))).stored] == ["mine", "another"]
    it.condition = "v = 'mine'"
    assert [r["v"] for r in life_of(it.subject, it.own, Biography(key(1))).stored] == ["mine"]


def test_columns_that_the_table_computes_are_shown_with_the_others(make: Make) -> None:
    fed = make("replacing", more="m String MATERIALIZED concat('m', toString(id)), a String ALIAS upper(m)")
    fed.feed([insert(1, "x", 100)])
    [stored] = stored_rows(fed.client, fed.table, wanted_key(fed.client, fed.table, key(1)).condition)
    assert (stored["v"], stored["m"], stored["a"]) == ("x", "m1", "M1")
