"""`rehearse` finds a table right that other commands have filled, mended and read again."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from ch_sink.clickhouse import Client
from ch_sink.decode import Decoder
from ch_sink.model.policy import policy_of
from ch_sink.trust.bootstrap import bootstrapped
from ch_sink.trust.erase import erased
from ch_sink.trust.erased_offsets import WithoutErased
from ch_sink.trust.mend import repaired
from ch_sink.trust.rehearse import Other, Rehearsed, rehearsed, table_name
from ch_sink.trust.replay import replayed
from ch_sink.trust.resync import resynced
from ch_sink.trust.subject import Options
from ch_sink.trust.topic import TopicReader
from tests.support.choose import some
from tests.support.hand_commands import Hand, hand, recreated
from tests.support.hand_steps import EVENTS, Rows, lose, position
from tests.support.hand_tables import ENGINES, OWN, delete, insert, row, update

pytestmark = pytest.mark.integration

CHANGES = [
    *EVENTS[:3],
    update(row(1, "a"), row(1, "aa"), 130),
    delete(row(2, "b"), 140),
    insert(2, "bb", 150),
    delete(row(3, "c"), 160),
]
NOW = [(1, "aa"), (2, "bb")]


def rehearsal(it: Hand, engine: str, **policy: Any) -> tuple[int, int, int]:
    """With a table of this engine."""
    r = shown(it, engine, **policy).report
    return r.missing, r.extra, r.different


def shown(
    it: Hand, engine: str, order: str = "ORDER BY id", topic: TopicReader | None = None, **policy: Any
) -> Rehearsed:
    clause, own = OWN[engine]
    live, chosen = it.subject, policy_of(on_bad_record="fail", **policy)
    columns = f"(id Int64, v Nullable(String), {own})"
    create = f"CREATE TABLE {it.database}.{table_name(live.table)} {columns} ENGINE = {clause} {order}"
    settings = replace(live.settings, policy=chosen)
    return rehearsed(live, Other(settings, create, lambda now, want: Decoder(now, chosen, want_before=want), topic))


def prepared(
    client: Client, database: str, engine: str, command: str, policy: dict[str, str], patch: pytest.MonkeyPatch
) -> tuple[Hand, list[tuple[int, str]]]:
    """A stream after a command, and the rows of its source."""
    if command == "bootstrap":
        it = hand(client, database, engine, CHANGES[:3], **policy)
        it.source = Rows([(1, "aa"), (3, "c")], settles=position(145))
        bootstrapped(it.refill, apply=True)
        it.topic(CHANGES)
        it.read_all()
        return it, NOW
    if command == "recreated topic":
        it = recreated(client, database, engine, patch, CHANGES, **policy)
        it.read_all()
        return it, [*NOW, (9, "x")]
    it = hand(client, database, engine, CHANGES, **policy)
    it.read((0, 2), (0, 4), (0, 7))
    if command == "resync":
        it.source = Rows(NOW, settles=position(170))
        resynced(it.refill, apply=True)
        it.topic([*CHANGES, update(row(1, "aa"), row(1, "aaa"), 180)])
        it.read_all()
        return it, [(1, "aaa"), (2, "bb")]
    if command == "resync against the topic":
        resynced(it.refill, apply=True, against="topic")
    elif command == "erase":
        erased(it.subject, it.own, {"id": 3}, apply=True)
    elif command == "repair":
        lose(it, 1)
        repaired(it.subject, Options(patience=0), apply=True)
    elif command == "replay":
        replayed(it.subject, {0: 2}, {0: 4})
    return it, NOW


COMMANDS = [
    "bootstrap", "recreated topic", "resync", "resync against the topic", "erase", "repair", "replay",
]  # fmt: skip
POLICIES = [{}, {"version_strategy": "kafka_offset"}]


def _chosen() -> list[Any]:
    every = product(ENGINES, (0, 1), (0, 1), COMMANDS)
    short = ("replacing", 0, 1, "resync"), ("collapsing", 0, 0, "recreated topic"), ("sign", 1, 0, "bootstrap")
    return some(every, [*short, ("versioned", 1, 1, "erase")])


@pytest.mark.parametrize(("engine", "was", "policy", "command"), _chosen())
def test_a_rehearsal_after_a_command(
    client: Client, database: str, engine: str, was: int, policy: int, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``was``: the policy of the stream; ``policy``: that of the rehearsal."""
    it, now = prepared(client, database, engine, command, POLICIES[was], monkeypatch)
    assert it.view() == now
    stored = it.stored()
    for other in ("replacing", "collapsing"):
        assert rehearsal(it, other, **POLICIES[policy]) == (0, 0, 0), other
    assert it.stored() == stored


def test_another_place_of_rows_is_shown(client: Client, database: str) -> None:
    it = hand(client, database, "replacing", CHANGES)
    it.read((0, 7))
    assert shown(it, "replacing").equal
    assert shown(it, "versioned").layout == {}
    found = shown(it, "replacing", "PARTITION BY id % 2 ORDER BY (id, v) SETTINGS allow_nullable_key = 1")
    assert found.report.equal
    assert not found.equal
    assert found.layout == {"ORDER BY": ("id, v", "id"), "PARTITION BY": ("id % 2", "")}


def test_the_other_configuration_reads_its_own_part_of_the_topic(client: Client, database: str) -> None:
    """As with another `source_table`."""
    it = hand(client, database, "replacing", CHANGES)
    it.read((0, 7))
    less = WithoutErased(it.subject.topic, {0: (0, 3)})
    assert shown(it, "replacing", topic=less).report.extra == 1
