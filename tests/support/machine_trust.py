"""Steps of a random sequence: the table is compared, mended, read again and filled anew."""

import time
from random import Random
from types import SimpleNamespace
from unittest.mock import patch

from ch_sink.errors import ChSinkError
from ch_sink.trust.repair import repaired
from ch_sink.trust.resync import resynced
from ch_sink.trust.subject import Options
from ch_sink.trust.verify import verified
from tests.support.machine import COLLAPSING, Stand, Wrong, differing
from tests.support.machine_letters import Refused

__all__ = [
    "against_topic",
    "defect",
    "repair",
    "repair_source",
    "resync_source",
    "resync_topic",
    "took_over",
    "verify",
    "verify_source",
]


def verify(s: Stand, rng: Random) -> None:
    against_topic(s)


def against_topic(s: Stand) -> None:
    rows, known, partial = s.fold()
    got, free = s.view(), s.in_doubt()
    want = differing(rows, got, free)
    want = {k: v for k, v in want.items() if k in known or not partial}
    with verified(s.subject, Options(patience=0, examples=1000)) as done:
        found = {int(e.key["id"]): e.kind for e in done.report.examples}
    if {k for k in found if k not in free} != {*want}:
        raise Wrong(f"verify against the topic found {found}, and {want} differ (topic, table); in doubt: {free}")


def verify_source(s: Stand, rng: Random) -> None:
    got, free = s.view(), s.in_doubt()
    want = differing(s.shop.rows, got, free)
    unread = s.shop.keys_of(s.shop.between(s.applied, s.shop.ends))
    with verified(s.subject, Options(patience=0, examples=1000, against="source")) as done:
        found = {int(e.key["id"]): e.kind for e in done.report.examples}
    if {k for k in found if k not in free | unread} != {k for k in want if k not in unread}:
        raise Wrong(f"verify against the source found {found}, and {want} differ (source, table); unread: {unread}")


def repair(s: Stand, rng: Random) -> None:
    rows, known, partial = s.fold()
    before, free = s.view(), s.in_doubt()
    wrong = {k: v for k, v in differing(rows, before, free).items() if k in known or not partial}
    done = repaired(s.subject, Options(patience=0), apply=True)
    if done.left or done.unremovable:
        raise Wrong(f"a repair against the topic left rows: {done}")
    if done.too_new and s.engine in COLLAPSING:
        raise Wrong(f"a repair found rows too new of a table without versions of deletes: {done}")
    if done.too_new:
        s.loose |= {*wrong}
        raise Refused("rows are newer than the stream")
    s.by_hand = True
    took_over(s, {k: rows.get(k, "none") for k in wrong}, {k for k in wrong if k not in rows})


def repair_source(s: Stand, rng: Random) -> None:
    if not s.all_read:
        raise Refused("not everything was read")
    done = repaired(s.subject, Options(patience=0, against="source"), apply=True)
    if done.left or done.unremovable:
        raise Wrong(f"a repair against the source left rows: {done}")
    if done.too_new and s.engine in COLLAPSING:
        raise Wrong(f"a repair found rows too new of a table without versions of deletes: {done}")
    if done.too_new:
        s.loose |= {*differing(s.shop.rows, s.view(), set())}
        raise Refused("rows are newer than the stream")
    s.by_hand = True
    s.loose.clear()
    s.rebase(s.shop.rows)


def took_over(s: Stand, rows: dict[int, str | None], gone: set[int]) -> None:
    right = s.right()
    for k in rows:
        if (k in gone) != (k not in right) or (k not in gone and right[k] != rows[k]):
            s.over[k] = s.shop.seq, None if k in gone else rows[k], k in gone


def resync_source(s: Stand, rng: Random) -> None:
    s.proves = rng.random() < 0.7
    # Where positions order the changes, only clocks distinguish what came less than two minutes before or after.
    apart = 200_000 if s.policy["version_strategy"] == "auto" else 0
    s.shop.clock += apart
    now = SimpleNamespace(time=lambda: s.shop.clock / 1000, monotonic=time.monotonic, sleep=time.sleep)
    with patch("ch_sink.trust.refill.time", now):
        resynced(s.refill, apply=True, against="source")
    s.shop.clock += apart
    s.loose.clear()
    s.doubtful = False
    s.rebase(s.shop.rows)
    if not s.all_read:
        raise Wrong(f"a resync did not go to the end: {s.applied} of {s.shop.ends}")


def resync_topic(s: Stand, rng: Random) -> None:
    resynced(s.refill, apply=True, against="topic")
    rows, _, _ = s.fold()
    if s.incomplete:
        raise Wrong("a resync against a topic that does not hold everything was not refused")
    s.loose.clear()
    s.rebase(rows)
    for p, at in s.open_letters():  # what they hold counts again once they are retried
        record = s.shop.log[p][at]
        if record.id in s.over:
            seq, value, gone = s.over[record.id]
            s.over[record.id] = min(seq, record.seq - 1), value, gone
    if not s.all_read:
        raise Wrong(f"a resync did not go to the end: {s.applied} of {s.shop.ends}")


def defect(s: Stand, rng: Random) -> None:
    """Plant one difference, and see it found and mended."""
    _, known, partial = s.fold()
    got, free = s.view(), s.in_doubt()
    source = s.all_read and rng.random() < 0.4
    good = [k for k in sorted(got) if k not in free and (source or k in known or not partial)]
    kind = rng.choice(["lose", "change", "add"])
    table = f"{s.database}.t"
    settled = "SETTINGS mutations_sync = 2"
    if kind == "add" and (source or not partial):
        id_ = 1000 + rng.randint(0, 50)
        mark, value = ("_is_deleted", 0) if s.engine in ("replacing", "timed") else ("_sign", 1)
        s.client.command(f"INSERT INTO {table} (id, v, {mark}) VALUES ({id_}, 'planted', {value})")
    elif kind == "lose" and good:
        s.client.command(f"ALTER TABLE {table} DELETE WHERE id = {rng.choice(good)} {settled}")
    elif good:
        s.client.command(f"ALTER TABLE {table} UPDATE v = 'planted' WHERE id = {rng.choice(good)} {settled}")
    else:
        raise Refused("nothing to plant")
    s.by_hand = True
    if s.view() == got:
        raise Wrong("nothing was planted")
    try:
        if source:
            verify_source(s, rng)
            repair_source(s, rng)
        else:
            verify(s, rng)
            repair(s, rng)
    except ChSinkError:
        s.client.command(f"ALTER TABLE {table} DELETE WHERE id >= 1000 {settled}")
        s.loose |= {*differing(got, s.view(), set())}
        raise
