"""Steps of a random sequence: what happens to the topic and to the table from outside."""

from random import Random

from ch_sink.trust.one_key import erased
from ch_sink.trust.purge import purged
from tests.support.machine import Stand, Wrong
from tests.support.machine_letters import Refused, retried_letters
from tests.support.machine_reading import all_of_it

__all__ = ["erase", "fail_over", "forget", "mend", "partition", "purge", "recreate", "retention", "retry"]


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
    if not s.all_read:
        all_of_it(s, rng)
    rows = s.right()
    found = s.letters.list(1000)
    s.loose |= {s.shop.log[x.letter.partition][x.letter.offset].id for x in found}
    s.former.append(s.topic.topic_id)
    s.shop.recreate()
    s.erased.clear()
    s.rebase(rows)
    s.topic.topic_id = f"id{len(s.former)}"
    s.unseen = rng.random() < 0.3
    s.refresh()
    if not s.unseen:
        s.shop.snapshot()
        # Deletes that became letters of the former topic.
        s.loose |= {*rows} - {*s.shop.rows}
        s.refresh()


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
