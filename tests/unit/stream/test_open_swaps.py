"""Two keys swapped in one transaction, whose halves arrive batches apart and are released in between: the swap that a
released change opened outlives the process. And the same where versions hold Kafka offsets: positions tell the swap.
"""

import pytest

from tests.support.choose import each_value, some
from tests.support.hand import PLACEHOLDER, Event, key_change, postgres
from tests.support.harness import VERSIONS
from tests.support.kills import POINTS, Kill
from tests.support.memory_fed import MemoryFed

ENGINES = ("replacing", "sign", "versioned", "append")


def row(key: int, big: str) -> dict[str, object]:
    return {"id": key, "big": big}


def create(key: int, big: str, at: int):
    return postgres("c", {"id": key}, None, row(key, big), at, at - 10)


def swap(at: int = 200, one: str = PLACEHOLDER, two: str = PLACEHOLDER) -> tuple[list[Event], list[Event]]:
    """Row 1 becomes 2 and row 2 becomes 1, in one transaction; both large values are left out, or are these."""
    first = key_change(
        postgres("d", {"id": 1}, None, None, at, at - 10),
        postgres("c", {"id": 2}, None, row(2, one), at, at - 10),
    )
    second = key_change(
        postgres("d", {"id": 2}, None, None, at, at - 5),
        postgres("c", {"id": 1}, None, row(1, two), at, at - 5),
    )
    return first, second


def stored(engine: str, version: str = "UInt128", partitions: int = 2) -> MemoryFed:
    """Row 1 is on partition 0 and row 2 on the last one."""
    fed = MemoryFed(engine, partitions, version=version)
    fed.feed(0, create(1, "one", 100))
    fed.feed(partitions - 1, create(2, "two", 110))
    return fed


SWAPPED = {1: "two", 2: "one"}


@pytest.mark.parametrize(("dies", "engine", "version"), each_value([False, True], ENGINES, ["UInt128", "UInt64"]))
def test_a_swap_opened_by_a_released_change_is_known_to_the_next_life(engine: str, version: str, dies: bool) -> None:
    fed, (one, two) = stored(engine, version), swap()
    fed.feed(1, one[2])  # waits for the row of key 1
    fed.feed(0, one[0])  # released after this batch
    assert len(fed.stream.pending) == 0
    if dies:
        fed.runner.kill()
    fed.feed(1, two[0])
    fed.feed(0, two[2])
    assert fed.view() == SWAPPED


@pytest.mark.parametrize(
    ("point", "engine", "version"),
    each_value(
        ["after release", "before release", "after pending", "before results", "after step"],
        ENGINES,
        ["UInt128", "UInt64"],
    ),
)
def test_a_release_inside_a_range_whose_batch_dies(engine: str, version: str, point: str) -> None:
    """The value arrives from a partition whose result is already stored; the range that releases is run again."""
    fed, (one, two) = stored(engine, version), swap()
    fed.feed(1, one[2])
    fed.send(0, one[0])
    fed.send(1, two[0], create(3, "three", 300))
    # Partition 0 goes first: partition 1's first chunk releases the create half, its second closes the swap.
    fed.batch(0, 1, kills=[Kill(point)], cut=1)
    fed.feed(0, two[2])
    assert fed.view() == {**SWAPPED, 3: "three"}


@pytest.mark.parametrize(("engine", "version"), each_value(ENGINES, ["UInt128", "UInt64"]))
def test_both_halves_of_the_key_wait_and_the_batch_that_releases_them_dies(engine: str, version: str) -> None:
    fed, (one, two) = stored(engine, version), swap()
    fed.feed(1, one[2])
    fed.send(1, two[0])
    fed.send(0, one[0])
    fed.send(1, create(3, "three", 300))
    fed.batch(1, 0, kills=[Kill("after release"), Kill("before results")], cut=1)
    fed.feed(0, two[2])
    assert fed.view() == {**SWAPPED, 3: "three"}


@pytest.mark.parametrize(("engine", "version"), each_value(ENGINES, ["UInt128", "UInt64"]))
def test_a_swap_that_is_over_is_forgotten(engine: str, version: str) -> None:
    """The next change of that key is a delete of its own row."""
    fed, (one, two) = stored(engine, version), swap()
    fed.feed(1, one[2])
    fed.feed(0, one[0])
    fed.runner.kill()
    fed.feed(1, two[0])
    fed.feed(0, two[2])
    fed.runner.kill()
    back = key_change(
        postgres("d", {"id": 2}, None, None, 400, 390), postgres("c", {"id": 5}, None, row(5, PLACEHOLDER), 400, 390)
    )
    fed.feed(1, back[0], back[2])
    assert fed.view() == {1: "two", 5: "one"}
    fed.runner.kill()
    fed.feed(1, create(6, "six", 500))
    assert fed.stream.pending.open("id", 1) == []


EVERY = pytest.mark.parametrize("engine", [*ENGINES, "collapsing"])


def swapped_at_once(engine: str, version: str) -> tuple[MemoryFed, list[Event]]:
    """Both rows on one partition, and the swap with whole values."""
    one, two = swap(one="one", two="two")
    return stored(engine, version, partitions=1), [*one, *two]


@pytest.mark.parametrize(("version", "engine"), each_value(VERSIONS, [*ENGINES, "collapsing"]))
def test_every_version_type_tells_a_swap_from_a_row_that_moves_on(engine: str, version: str) -> None:
    for cut in (None, 1, 3, 4):
        fed, events = swapped_at_once(engine, version)
        fed.feed(0, *events, cut=cut)
        assert fed.view() == SWAPPED, cut
        on = key_change(
            postgres("d", {"id": 2}, None, None, 300, 290), postgres("c", {"id": 5}, None, row(5, "one"), 300, 290)
        )
        fed.feed(0, *on, create(2, "new", 400), cut=cut)
        assert fed.view() == {1: "two", 2: "new", 5: "one"}, cut


@pytest.mark.long
@pytest.mark.parametrize(
    "engine", some(((e,) for e in (*ENGINES, "collapsing")), [("replacing",), ("append",), ("collapsing",)])
)
def test_a_swap_by_offsets_survives_kills_and_lives_that_end_between_its_halves(engine: str) -> None:
    for point in POINTS:
        for cut in (3, 4):
            fed, events = swapped_at_once(engine, "UInt64")
            fed.feed(0, *events[:cut], kills=[Kill(point)], cut=1)
            fed.runner.kill()
            fed.feed(0, *events[cut:], kills=[Kill(point)], cut=1)
            assert fed.view() == SWAPPED, (point, cut)


@EVERY
def test_a_swap_without_position_stays_open_behind_a_change_that_states_one(engine: str) -> None:
    """As a connector sends the first transaction after its restart; the chunk ends after a create half."""
    for cut in (4, 5):
        fed, events = swapped_at_once(engine, "UInt128")
        for event in events:
            if event.value is not None:
                event.value["source"]["sequence"] = '[null,"190"]'
        batch = [create(3, "three", 120), *events]
        fed.feed(0, *batch[:cut])
        fed.feed(0, *batch[cut:])
        assert fed.view() == {**SWAPPED, 3: "three"}, cut


@EVERY
@pytest.mark.parametrize("again", [0, 3])
def test_a_swap_by_offsets_that_is_delivered_again_changes_nothing(engine: str, again: int) -> None:
    """From the beginning of the transaction, or from the middle: then the last delete of key 2 has no create before."""
    fed, events = swapped_at_once(engine, "UInt64")
    fed.feed(0, *events)
    fed.feed(0, *events[again:], cut=1)
    assert fed.view() == SWAPPED
    if engine == "append":
        assert len(fed.stream.table.rows) == 6
