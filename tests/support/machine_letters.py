"""Steps of a random sequence that need more than one call: letters that are retried, backups that are restored."""

import copy
from random import Random

from ch_sink.ports import StoredLetter
from ch_sink.stream.partition_states import States
from ch_sink.stream.tasks import ReleaseTask
from ch_sink.trust.history import loads_of
from ch_sink.wiring.letters import LetterRetry
from tests.support.machine import COLLAPSING, Copies, Stand

__all__ = ["Refused", "backup", "restore", "retried_letters"]

TABLES = ("t", "ch_sink_dead_letters", "ch_sink_handover", "ch_sink_pending")


class Refused(Exception):
    """The step has no place here; nothing was done."""


def retried_letters(s: Stand, rng: Random) -> None:
    """As ``dead-letters retry`` does, of all topics; sometimes some of them only."""
    by_topic = {topic_id: s.letters_of(topic_id).list(1000) for topic_id in s.letters.topic_ids()}
    found = [(topic_id, x) for topic_id, letters in by_topic.items() for x in letters]
    if rng.random() < 0.3:
        found = rng.sample(found, (len(found) + 1) // 2)
    if not found:
        raise Refused("no letters")
    claim = s.book.claim("letters")
    try:
        for topic_id, partition in sorted({(t, x.letter.partition) for t, x in found}):
            if topic_id in s.book.topic_ids():
                chosen = [x for t, x in found if (t, x.letter.partition) == (topic_id, partition)]
                _retry(s, claim, topic_id, partition, sorted(chosen, key=lambda x: x.letter.offset))
    finally:
        s.book.release()


def _retry(s: Stand, claim: object, topic_id: str, partition: int, found: list[StoredLetter]) -> None:
    reached = s.book.progress(topic_id).get(partition, 0)
    state = States(s.book, topic_id, 0, None).at(partition, reached)
    task = ReleaseTask(s.name, "t", topic_id, partition, s.admin.table, state, claim=claim)  # type: ignore[arg-type]
    retry = LetterRetry(s.runner().open_task(task).sink, s.book, state)
    done = retry.run([x.letter for x in found])
    for outcome, offsets in (("applied", done.applied), ("superseded", done.superseded), ("waiting", done.waiting)):
        s.letters_of(topic_id).settle([(partition, offset) for offset in offsets], outcome)


def backup(s: Stand, rng: Random) -> None:
    """Keep all tables as they are."""
    for name in TABLES:
        s.client.command(f"DROP TABLE IF EXISTS {s.database}.backup_{name}")
        _copied(s, name, f"backup_{name}")
    s.copies = Copies(
        s.topic.topic_id, copy.deepcopy(s.book._book), dict(s.over), set(s.loose), s.narrow, s.doubtful,
        len(loads_of(s.book, s.topic.topic_id)), s.applied, s.touched == s.applied,
    )  # fmt: skip


def restore(s: Stand, rng: Random) -> None:
    """All tables and the ledger, or the ledger alone."""
    kept = s.copies
    if kept is None:
        backup(s, rng)
        return
    if kept.topic_id != s.topic.topic_id:
        raise Refused("the backup is of another topic")
    if any(s.shop.low[p] > at for p, at in kept.applied.items()):
        raise Refused("the topic has lost what came since")
    what = rng.choice(["all", "all", "ledger"])
    same = len(loads_of(s.book, s.topic.topic_id)) == kept.loads and not any(s.shop.low.values())
    if what != "all" and (not same or not kept.clean or s.engine in (*COLLAPSING, "timed") or kept.narrow != s.narrow):
        raise Refused(f"{what} alone cannot be restored")
    if what == "all":
        for name in TABLES:
            s.client.command(f"DROP TABLE {s.database}.{name} SYNC")
            _copied(s, f"backup_{name}", name)
        s.admin.table = s.admin.inner.detect()
    s.book._book = copy.deepcopy(kept.book)
    if what == "all":
        s.over, s.loose, s.narrow = dict(kept.over), set(kept.loose), kept.narrow
        s.doubtful = kept.doubtful
        s.shop.again |= s.shop.ever
    else:
        s.doubtful = True


def _copied(s: Stand, name: str, to: str) -> None:
    s.client.command(f"CREATE TABLE {s.database}.{to} AS {s.database}.{name}")
    # Its parts, as a backup does it: rows of collapsing tables are in an order.
    s.client.command(f"ALTER TABLE {s.database}.{to} ATTACH PARTITION ALL FROM {s.database}.{name}")
