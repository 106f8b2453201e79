"""Drawn lives of a topic: partitions are added under a lag, connectors change their name, and the job dies anywhere in
between. The table equals the source in the end, on every engine.

Beside the drawn histories of tests/model, in which the topic and the connector stay what they are.
"""

import random
import zlib
from collections import Counter
from importlib import import_module
from typing import Any

import pytest

from ch_sink.errors import StreamFailed
from ch_sink.model.policy import policy_of
from tests.support.hand import mysql
from tests.support.kills import POINTS, Kill
from tests.support.memory_fed import MemoryFed

ENGINES = ("replacing", "sign", "collapsing", "versioned", "append")
SEEDS = 8


class Source:
    """A table of the source, and its connector's way into the topic."""

    def __init__(self, rng: random.Random, fed: MemoryFed, name: str, keys: range, partitions: int) -> None:
        self.rng, self.fed, self.name, self.keys = rng, fed, name, keys
        self.rows: dict[int, str] = {}
        self.file, self.at, self.count = rng.choice((3, 50, 900)), 100, 0
        self.known = partitions
        """How many partitions the producer knows of."""

    def change(self) -> None:
        key = self.rng.choice(self.keys)
        self.count += 1
        if key in self.rows and self.rng.random() < 0.3:
            self._send("d", key, self.rows.pop(key))
        else:
            op = "u" if key in self.rows else "c"
            self.rows[key] = f"{self.name}{self.count}"
            self._send(op, key, self.rows[key])

    def truncate(self) -> None:
        self.rows.clear()
        self.at += 100
        event = mysql("t", None, None, None, self.at, name=self.name, file=f"mysql-bin.{self.file:06}")
        self.fed.send(self.rng.randrange(self.known), event)

    def renamed(self) -> None:
        """The connector is made anew under another name, on a server with files of its own."""
        self.name, self.file, self.at = self.name + "x", self.rng.choice((1, 3, 50, 900, 1000)), 100

    def _send(self, op: str, key: int, value: str) -> None:
        self.at += self.rng.choice((0, 10, 10))
        row = {"id": key, "big": value}
        before, after = (row, None) if op == "d" else (None, row)
        file = f"mysql-bin.{self.file:06}"
        event = mysql(op, {"id": key}, before, after, self.at, name=self.name, file=file, row=self.count)
        self.fed.send(zlib.crc32(b"%d" % key) % self.known, event)


def drained(fed: MemoryFed) -> None:
    quiet = 0
    while quiet < 3:
        quiet = 0 if fed.poll() else quiet + 1


def polled(fed: MemoryFed, rng: random.Random) -> None:
    kill = Kill(rng.choice(POINTS), rng.choice((1, 1, 2))) if rng.random() < 0.4 else None
    fed.poll(rng.choice((1, 2, 5, None)), kill=kill)
    if rng.random() < 0.2:
        fed.runner.kill()


def lived(seed: int, engine: str, met: Counter[str] | None = None) -> str:
    """Run one drawn life; returns what is wrong at its end, nothing if all is right."""
    rng = random.Random(seed)
    by_offset = rng.random() < 0.5
    policy = policy_of(version_strategy="kafka_offset") if by_offset else policy_of()
    fed = MemoryFed(engine, partitions=rng.choice((1, 1, 2)), policy=policy)
    first = len(fed.topic.ends)
    source = Source(rng, fed, "a", range(6), first)
    fed.poll()  # a stream that begins later knows nothing of how many partitions there were
    # One of them in a life: a new name's positions say nothing about a partition that has not seen the old one.
    happens = rng.choice(("grows", "renamed"))
    if met is not None:
        met[f"{happens}, {'offset' if by_offset else 'position'}"] += 1
    for _ in range(rng.randint(20, 60)):
        draw = rng.random()
        if draw < 0.6:
            source.change()
        elif draw < 0.9:
            polled(fed, rng)
        elif happens == "grows" and len(fed.topic.ends) == first:  # again only after the stream has begun with these
            for p in range(len(fed.topic.ends), len(fed.topic.ends) * rng.choice((2, 3))):
                fed.send(p)
        elif happens == "renamed":
            source.renamed()
        # The producer hears of new partitions some time later.
        if source.known < len(fed.topic.ends) and rng.random() < 0.2:
            polled(fed, rng)
            source.known = len(fed.topic.ends)
            if rng.random() < 0.5:
                source.change()
            drained(fed) if rng.random() < 0.5 else None
    drained(fed)
    if fed.letters:
        return f"{len(fed.letters)} dead letters"
    if engine in ("collapsing", "versioned") and (wrong := {k: n for k, n in fed.sums().items() if n not in (0, 1)}):
        return f"signs sum to {wrong}"
    return "" if fed.view() == source.rows else f"{fed.view()} instead of {source.rows}"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("engine", ENGINES)
def test_the_table_equals_its_source(engine: str) -> None:
    found = {seed: lived(seed, engine) for seed in range(SEEDS)}
    assert {seed: wrong for seed, wrong in found.items() if wrong} == {}


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
def test_the_table_equals_its_source_two_thousand_times(engine: str) -> None:
    found = {seed: lived(seed, engine) for seed in range(1000, 3000)}
    assert {seed: wrong for seed, wrong in found.items() if wrong} == {}


@pytest.mark.long
def test_every_event_of_a_topics_life_is_drawn() -> None:
    met: Counter[str] = Counter()
    for seed in range(SEEDS):
        lived(seed, "replacing", met)
    wanted = {f"{what}, {by}" for what in ("grows", "renamed") for by in ("offset", "position")}
    assert wanted - set(met) == set()


def truncated(seed: int, engine: str) -> str:
    """Sources of several names in one topic, with truncates: applied while one name is known, refused from then on."""
    rng = random.Random(seed)
    fed = MemoryFed(engine, partitions=rng.choice((1, 2, 3)), policy=policy_of(truncate="apply"))
    n = len(fed.topic.ends)
    one, two = Source(rng, fed, "a", range(4), n), Source(rng, fed, "b", range(4, 8), n)
    joins = rng.choice((10, 20, 99))
    met_two = False
    for step in range(rng.randint(15, 40)):
        draw = rng.random()
        if draw < 0.6:
            (two if step > joins and rng.random() < 0.5 else one).change()
            met_two |= bool(two.count)
        elif draw < 0.92:
            try:
                polled(fed, rng)
            except StreamFailed as error:
                # Nothing was deleted, and nothing of either source is lost: the rows before the truncate are there.
                return "" if met_two and "rows of 'b'" in str(error) else f"refused for nothing: {error}"
        else:
            one.truncate()
    try:
        drained(fed)
    except StreamFailed as error:
        return "" if met_two else f"refused for nothing: {error}"
    rows: dict[int, Any] = one.rows | two.rows
    return "" if fed.view() == rows else f"{fed.view()} instead of {rows}"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "append"])
def test_a_truncate_deletes_no_rows_of_another_source(engine: str) -> None:
    found = {seed: truncated(seed, engine) for seed in range(SEEDS)}
    assert {seed: wrong for seed, wrong in found.items() if wrong} == {}


@pytest.mark.long
@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "append"])
def test_a_thousand_truncates_delete_no_rows_of_another_source(engine: str) -> None:
    found = {seed: truncated(seed, engine) for seed in range(1000, 2000)}
    assert {seed: wrong for seed, wrong in found.items() if wrong} == {}


def test_the_comparison_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a new epoch for a new source name its changes are lost."""
    module = import_module("ch_sink.order.sequence")
    monkeypatch.setattr(module, "_entry", lambda state, name, *_: state.of(name))
    assert any(lived(seed, "replacing") for seed in range(SEEDS))
