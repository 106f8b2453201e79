"""The busy streams: overlapping transactions, re-delivered stretches, key changes with placeholders over partitions."""

import random
from itertools import product

import pytest

from ch_sink.clickhouse import Client
from tests.support.busy import ENGINES, feed_of
from tests.support.choose import some
from tests.support.kills import Kill
from tests.support.recorded import equal

pytestmark = [pytest.mark.integration, pytest.mark.slow]
AXES = ("postgres", "mariadb"), ("acct", "hot"), ENGINES
SLICED = [
    ("mariadb", "acct", "sign-replacing"),
    ("postgres", "hot", "collapsing"),
]
KILLED = [(source, "hot", e) for source, e in zip(("postgres", "mariadb") * 2, ENGINES, strict=True)]
"""What `make test` runs of all combinations: each value, and the larger table as often as it must."""


class TestBusy:
    @pytest.mark.long
    @pytest.mark.parametrize(("source", "table", "engine"), list(product(*AXES)))
    def test_in_one_run(self, client: Client, database: str, source: str, table: str, engine: str) -> None:
        feed = feed_of(client, database, source, table, engine)
        feed.run()
        assert equal(client, database, f"{source}-busy", source, table) == []
        assert feed.letters == 0

    @pytest.mark.long
    @pytest.mark.parametrize(("source", "table", "engine"), some(product(*AXES), SLICED))
    def test_in_fifty_slices(self, client: Client, database: str, source: str, table: str, engine: str) -> None:
        feed = feed_of(client, database, source, table, engine)
        rng = random.Random(f"{source}{table}{engine}")
        feed.run(rng, longest=max(feed.ends.values()) // 10)
        assert equal(client, database, f"{source}-busy", source, table) == []
        assert feed.letters == 0

    @pytest.mark.sampled(1)
    @pytest.mark.parametrize(("source", "table", "engine"), some(product(*AXES), KILLED))
    def test_killed_at_ten_moments(self, client: Client, database: str, source: str, table: str, engine: str) -> None:
        feed = feed_of(client, database, source, table, engine, partition_by="k % 3" if table == "acct" else "")
        rng = random.Random(f"kill {source}{table}{engine}")
        for _ in range(10):
            left = [p for p in feed.at if feed.at[p] < feed.ends[p]]
            if not left:
                break
            partition = rng.choice(left)
            end = min(feed.ends[partition], feed.at[partition] + rng.randint(1, max(2, feed.ends[partition] // 12)))
            feed.chunk(partition, end, Kill("before insert", rng.randint(1, 4)))
        feed.run(rng, longest=400)
        assert equal(client, database, f"{source}-busy", source, table) == []
        assert feed.letters == 0
