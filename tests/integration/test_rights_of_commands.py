"""Commands that make tables or remove rows work with just the rights that docs/rights.md lists."""

import re
from collections.abc import Iterator, Sequence

import pytest

from ch_sink.clickhouse import Client
from ch_sink.trust.key import wanted_key
from ch_sink.trust.life import Reading, biography
from ch_sink.trust.one_key import erased, noted_of
from ch_sink.trust.purge import purged
from ch_sink.trust.repair import repaired
from ch_sink.trust.resync import resynced
from ch_sink.trust.subject import Options
from tests.support.endpoint import settings_for
from tests.support.hand_commands import Hand
from tests.support.hand_letters import BIG, WideRows, lettered
from tests.support.hand_tables import delete, insert, row
from tests.support.rights import Limited
from tests.support.sink import ROOT

pytestmark = pytest.mark.integration

PAGE = (ROOT / "docs" / "rights.md").read_text(encoding="utf-8")
JOB = "## ClickHouse: a job and the commands beside it"
FILL = "### For `verify`, `repair` and `resync`"
PURGE = "### With `truncate: apply`, and for `purge`"
ERASE = "### For a purge by key"
SOURCE = [(1, "a", 1), (2, "b", 1)]


def granted(heading: str) -> list[str]:
    block = re.search(r"```sql\n(.*?)```", PAGE.partition(f"{heading}\n")[2], re.DOTALL)
    assert block, heading
    lines = block[1].replace("shop.orders", "shop.t").replace(" TO ch_sink", "").splitlines()
    return [line.rstrip(";") for line in lines]


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Limited]:
    made = Limited(tmp_path_factory.mktemp("limited"))
    made.clickhouse.start()
    yield made
    made.clickhouse.stop()


@pytest.fixture
def it(limited: Limited) -> Iterator[Hand]:
    """A stream that has read an insert, one that became a dead letter, and the delete of that row; row 2 is missing."""
    limited.restart(None)
    client = Client(settings_for(limited.clickhouse.url))
    client.command("DROP DATABASE IF EXISTS shop SYNC")
    client.command("CREATE DATABASE shop")
    events = [insert(1, "a", 100, n=1), insert(3, "c", 110, n=BIG), delete(row(3, "c", n=BIG), 120)]
    made = lettered(client, "shop", "replacing", events)
    made.read((0, 2), (0, 3))
    made.source = WideRows(SOURCE)
    yield made
    client.close()


def as_user(limited: Limited, it: Hand, headings: Sequence[str]) -> None:
    """From now on with these rights."""
    it.client.close()
    limited.restart([*(line for heading in headings for line in granted(heading)), "GRANT READ ON FILE"])
    it.client = Client(settings_for(limited.clickhouse.url))


def test_comparisons_and_fillings(limited: Limited, it: Hand) -> None:
    as_user(limited, it, [JOB, FILL])
    assert it.verify_source() == (1, 0, 0)
    assert repaired(it.subject, Options(patience=0, against="source"), apply=True).all_repaired
    assert it.verify_source() == (0, 0, 0)


def test_what_needs_no_more_than_a_job(limited: Limited, it: Hand) -> None:
    as_user(limited, it, [JOB])
    s, key = it.subject, {"id": 3}
    noted = noted_of(s, it.own, s.topic.state("t").topic_id)
    wanted = wanted_key(s.client, s.table, key)
    life = biography(Reading.of(s), wanted, noted)
    assert [event.rule for event in life.events] == ["dead letter", "newer"]


def test_a_new_table(limited: Limited, it: Hand) -> None:
    it.feed.letters_of.settle([(0, 1)], "dropped")
    as_user(limited, it, [JOB, FILL])
    assert resynced(it.refill, apply=True).rows == 2


def test_removals(limited: Limited, it: Hand) -> None:
    as_user(limited, it, [JOB, PURGE, ERASE])
    done = erased(it.subject, it.own, {"id": 3}, apply=True)
    assert done.rows["shop.t"] == done.rows["shop.ch_sink_dead_letters"] == 1
    assert purged(it.subject, it.own, {0: 3}, apply=True, settle=0).applied
