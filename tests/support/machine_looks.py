"""Steps of a random sequence that look at the table and leave it as it is: each says what the model says."""

from random import Random

from ch_sink.trust.biography import Biography, Event
from ch_sink.trust.one_key import life_of
from ch_sink.trust.resync import resynced
from tests.support.machine import ENGINES, Stand, Wrong, differing
from tests.support.machine_letters import Refused
from tests.support.machine_model import applied

__all__ = ["explain", "into"]


def explain(s: Stand, rng: Random) -> None:
    """The events of some keys are all of them, and the newest one is the row."""
    for id_ in rng.sample(sorted(s.shop.ever), min(3, len(s.shop.ever))):
        events = life_of(s.subject, s.own, Biography({"id": id_})).events
        log = s.shop.log
        told = {(p, at) for p in log for at in range(s.shop.low[p], len(log[p])) if _is_event(s, p, at, id_)}
        # A key of which no record can be read is known by its letters.
        if {(e.partition, e.offset) for e in events} != told:
            raise Wrong(f"explain shows {events} of key {id_}, and the topic has {sorted(told)}")
        if s.all_read and id_ not in s.in_doubt():
            _expect_true(s, id_, events)


def _is_event(s: Stand, p: int, at: int, id_: int) -> bool:
    record = s.shop.log[p][at]
    return record.id == id_ and (record.effective or record.bad)


def _expect_true(s: Stand, id_: int, events: list[Event]) -> None:
    view, rules = s.view(), [e.rule for e in events]
    if {"not read yet", "waiting"} & {*rules}:
        raise Wrong(f"explain calls changes of key {id_} unread: {events}")
    newest = [e for e in events if e.rule == "newer"]
    if len(newest) > 1:
        raise Wrong(f"explain calls several changes of key {id_} newer: {newest}")
    for e in newest:
        record = s.shop.log[e.partition][e.offset]
        lost = "the table has no row" in e.why
        is_it = id_ not in view if record.gone or lost else (id_ in view and view[id_] == record.value)
        if not is_it or (lost and not s.by_hand):
            raise Wrong(f"explain says of key {id_} that offset {e.offset} of {e.partition} is it: {events}, {view}")
    if "repaired" in rules and not s.by_hand:
        raise Wrong(f"explain calls key {id_} repaired: {events}")
    from_topic = not (any(s.shop.low.values()) or s.loaded or s.former or s.by_hand)
    if from_topic and id_ in view and not newest:
        raise Wrong(f"explain does not know whence the row of key {id_} is: {events}, {view}")


def into(s: Stand, rng: Random) -> None:
    """The whole topic in another table is what the topic shows."""
    if any(s.shop.low.values()):
        raise Refused("the topic has lost its front")
    clause, own = ENGINES[s.engine]
    number = "UInt8" if s.narrow else "Int64"
    s.client.command(f"DROP TABLE IF EXISTS {s.database}.r SYNC")
    s.client.command(
        f"CREATE TABLE {s.database}.r (id Int64, v Nullable(String), n Nullable({number}), {own}) ENGINE = {clause} "
        "ORDER BY id"
    )
    resynced(s.refill, apply=True, against="topic", into="r")
    mark = {"replacing": "_is_deleted = 0", "timed": "_is_deleted = 0"}.get(s.engine, "_sign > 0")
    found = s.client.rows(f"SELECT id, v FROM {s.database}.r FINAL WHERE {mark}")
    rows = {int(r["id"]): r["v"] for r in found}
    want = _all_rows(s)
    # Whether the former values of a row make a letter of its change depends on the engine.
    unsure = {r.id for log in s.shop.log.values() for r in log if r.wide} if s.narrow else set()
    if wrong := differing(want, rows, s.moved() | unsure):
        raise Wrong(f"another table got {wrong} (right, found)")


def _all_rows(s: Stand) -> dict[int, str | None]:
    return applied({}, (r for r in s.shop.between({}, s.shop.ends) if not (s.narrow and r.wide)))
