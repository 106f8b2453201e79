"""Steps of a random sequence: changes that are written, and jobs that read them."""

from random import Random

from ch_sink.errors import StreamFailed
from tests.support.kills import Kill
from tests.support.local_runner import LocalBatch
from tests.support.machine import Stand, Wrong
from tests.support.machine_letters import Refused
from tests.support.machine_trust import resync_source

__all__ = ["again", "all_of_it", "dies", "flow", "killed", "read", "snapshot", "truncate", "write"]

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
    s.unseen = s.unseen and not s.shop.rows
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
