"""Steps of a random sequence: commands are carried out, the stream reads, the source and the topic go on."""

import time
from random import Random
from types import SimpleNamespace
from unittest.mock import patch

from ch_sink.errors import ChSinkError, DataLoss, StreamFailed
from ch_sink.trust.one_key import erased
from ch_sink.trust.purge import purged
from ch_sink.trust.repair import repaired
from ch_sink.trust.resync import resynced
from ch_sink.trust.subject import Options
from ch_sink.trust.verify import verified
from tests.support.kills import Kill
from tests.support.local_runner import LocalBatch
from tests.support.machine import COLLAPSING, Refused, Stand, Wrong, differing, retried_letters


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


POINTS = ("after intents", "before insert", "after insert", "after progress", "before results", "after results")


def write(s: Stand, rng: Random) -> None:
    for _ in range(rng.randint(1, 5)):
        s.shop.change(rng)
    s.refresh()


def again(s: Stand, rng: Random) -> None:
    s.shop.send_again(rng.randint(1, 6))
    s.refresh()


def truncate(s: Stand, rng: Random) -> None:
    if s.shop.partitions > 1 or s.engine in ("timed", "bare"):
        raise Refused("a truncate cannot be ordered here")
    s.shop.truncate()
    s.shop.change(rng)
    s.refresh()


def snapshot(s: Stand, rng: Random) -> None:
    s.shop.snapshot()
    s.refresh()


def read(s: Stand, rng: Random, kills: int = 0, *, dies: bool = False) -> None:
    """Read a stretch, or everything; something is written before if there is nothing to read."""
    if s.applied == s.shop.ends or rng.random() < 0.3:
        write(s, rng)
    runner = s.runner()
    try:
        if not kills and not dies and rng.random() < 0.4:
            runner.catch_up(rng.choice([None, 2, 5]))
        else:
            ranges = runner.coordinator.plan(s.topic.state("t"), rng.choice([None, 1, 3, 6]))
            if not ranges:
                raise Refused("nothing to read")
            struck = [Kill(rng.choice(POINTS), rng.randint(1, 2)) for _ in range(kills)]
            batch = LocalBatch({r.partition: (r.start, r.end) for r in ranges}, kills=struck, high=dict(s.shop.ends))
            if dies:
                runner.strike(batch, Kill(rng.choice(POINTS)))
            else:
                runner.run([batch])
    finally:
        if dies:
            runner.kill()
        else:
            runner.stop()


def flow(s: Stand, rng: Random) -> None:
    """Changes, all of which are read."""
    write(s, rng)
    all_of_it(s, rng)


def all_of_it(s: Stand, rng: Random) -> None:
    try:
        _to_the_end(s)
    except StreamFailed as error:
        if "repaired from the source" not in str(error):
            raise
        resync_source(s, rng)  # the remedy that the error names
        _to_the_end(s)
    if not s.all_read:
        raise Wrong(f"not everything was read: {s.applied} of {s.shop.ends}")
    s.doubtful = False


def _to_the_end(s: Stand) -> None:
    runner = s.runner()
    try:
        for _ in range(3):  # partitions that were added are read once a second look has seen them
            runner.catch_up(None)
    finally:
        runner.stop()


def killed(s: Stand, rng: Random) -> None:
    read(s, rng, kills=rng.randint(1, 3))


def dies(s: Stand, rng: Random) -> None:
    read(s, rng, dies=True)


def purge(s: Stand, rng: Random) -> None:
    until = {p: n if rng.random() < 0.6 else rng.randint(0, n) for p, n in s.shop.ends.items()}
    purged(s.subject, s.own, until, apply=True, settle=0.0)


def erase(s: Stand, rng: Random) -> None:
    if not s.all_read:
        all_of_it(s, rng)
    gone = sorted(s.shop.ever - {*s.shop.rows})
    if not gone:
        raise Refused("no row is gone")
    id_ = rng.choice(gone)
    letters = {(p, at) for p, at in s.open_letters() if s.shop.log[p][at].id == id_}
    erased(s.subject, s.own, {"id": id_}, apply=True)
    s.erased |= letters
    left = s.client.rows(f"SELECT id FROM {s.database}.t WHERE id = {id_}")
    if left:
        raise Wrong(f"the erased key {id_} is still there")


def mend(s: Stand, rng: Random) -> None:
    """The table can hold from now on what it could not, and the letters are retried."""
    s.client.command(f"ALTER TABLE {s.database}.t MODIFY COLUMN n Nullable(Int64)")
    s.admin.table = s.admin.inner.detect()
    s.narrow = False
    if rng.random() < 0.8:
        retry(s, rng)


def retry(s: Stand, rng: Random) -> None:
    retried_letters(s, rng)


def forget(s: Stand, rng: Random) -> None:
    found = s.letters.list(1000)
    if not found:
        raise Refused("no letters")
    s.letters.settle([(x.letter.partition, x.letter.offset) for x in found], "dropped")


def retention(s: Stand, rng: Random) -> None:
    """The topic loses its front; sometimes also what was not read."""
    far = rng.random() < 0.2
    for p, n in s.shop.ends.items():
        most = n if far else s.applied[p]
        if most > s.shop.low[p] and rng.random() < 0.7:
            new = rng.randint(s.shop.low[p] + 1, most)
            lost = s.shop.keys_of(s.shop.log[p][s.applied[p] : new])
            # Values that the create half of a key change leaves out went with its delete half.
            s.loose |= lost | {r.id for r in s.shop.log[p][new:] if r.former in lost}
            s.shop.low[p] = new
    s.refresh()


def recreate(s: Stand, rng: Random) -> None:
    """Another topic of that name stops the stream, until the table was filled again."""
    rows = s.right()
    s.loose |= s.in_doubt() | {s.shop.log[p][at].id for p, at in s.open_letters()}
    s.former.append(s.topic.topic_id)
    s.shop.recreate()
    s.erased.clear()
    s.rebase(rows)
    s.topic.topic_id = f"id{len(s.former)}"
    whole = rng.random() < 0.7
    if whole:
        s.shop.snapshot()
    s.refresh()
    for command in (all_of_it, verify, repair):
        try:
            command(s, rng)
        except DataLoss as error:
            if "was recreated" not in str(error):
                raise
        else:
            raise Wrong("a topic that was recreated was not refused")
    if whole and rng.random() < 0.5:
        resync_topic(s, rng)
        return
    if not whole and s.shop.rows:
        try:
            resync_topic(s, rng)
        except StreamFailed:
            pass
        else:
            raise Wrong("a topic without a snapshot filled the table")
    resync_source(s, rng)


def partition(s: Stand, rng: Random) -> None:
    if s.shop.partitions > 3:
        raise Refused("enough partitions")
    if any(r.empties for r in s.shop.log[0][s.applied[0] :]):
        raise Refused("a truncate is not read")
    s.shop.add_partitions(s.shop.partitions + rng.choice([1, s.shop.partitions]))
    s.refresh()


def fail_over(s: Stand, rng: Random) -> None:
    if not all(s.shop.ends.values()):
        raise Refused("a new partition would not show the step back")
    s.shop.fail_over()
    for _ in range(rng.randint(1, 3)):
        s.shop.change(rng)
    s.refresh()
