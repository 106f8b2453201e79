"""Draws sequences of steps, runs them, and shortens those that fail."""

import itertools
import re
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from random import Random

from ch_sink.clickhouse import Client
from ch_sink.errors import ChSinkError
from tests.support.kills import Killed
from tests.support.machine import Stand, Wrong
from tests.support.machine_model import Shop
from tests.support.machine_steps import STEPS, Refused, Step

__all__ = ["Outcome", "Plan", "drawn", "run", "shortened"]

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Plan:
    """A sequence, and what it begins with."""

    engine: str
    partitions: int
    strategy: str
    kept: int
    chunk: int
    wide: float
    lost: str
    pg: bool
    steps: tuple[Step, ...]
    end: tuple[Step, ...] = ()


@dataclass
class Outcome:
    failure: str = ""
    steps: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def kind(self) -> str:
        """What failed, without its numbers."""
        return re.sub(r"[0-9]+|'.*?'", "", self.failure.partition(" ")[2].partition(" ")[2])[:45]


def drawn(seed: int, shortest: int = 3, longest: int = 8) -> Plan:
    rng = Random(seed)
    wide = rng.choice([0.0, 0.0, 0.2])
    chosen = {name: weight for name, (weight, _) in STEPS.items() if wide or name not in ("mend", "retry", "forget")}
    names, weights = [*chosen], [*chosen.values()]
    count = rng.randint(shortest, longest)
    steps = [("write", rng.randrange(10**6)), ("read", rng.randrange(10**6))]
    steps += [(name, rng.randrange(10**6)) for name in rng.choices(names, weights, k=count)]
    engine = rng.choice(["replacing", "replacing", "sign", "collapsing", "collapsing", "versioned", "timed", "bare"])
    strategy = rng.choice(["auto", "auto", "kafka_offset"])
    return Plan(
        engine,
        rng.choice([1, 1, 2, 3]),
        "source_time" if engine == "timed" else strategy,
        rng.choice([500, 500, 2]),
        rng.choice([50_000, 2]),
        wide,
        rng.choice(["fail", "continue"]),
        not wide and rng.random() < 0.5,
        tuple(steps),
        rng.choice([(), (("verify", 0),), (("verify source", 0),)]),
    )


def run(client: Client, plan: Plan) -> Outcome:
    """Run a sequence; it ends with everything read and compared."""
    out = Outcome()
    shop = Shop(plan.partitions, int(time.time() * 1000) - 3_600_000, wide=plan.wide, pg=plan.pg)
    policy = {"version_strategy": plan.strategy, "truncate": "apply"}
    name = f"machine_{next(_numbers)}"
    stand = Stand(client, name, plan.engine, shop, policy, plan.kept, plan.chunk, plan.lost)  # type: ignore[arg-type]
    at, name = -1, ""
    try:
        for name, seed in [*plan.steps, ("all", 0), *plan.end]:
            at += 1
            out.steps[name] += 1
            try:
                STEPS[name][1](stand, Random(seed))
            except Refused as no:
                out.refused[f"{name}: (machine) {no}"] += 1
            except ChSinkError as error:
                out.refused[f"{name}: {type(error).__name__}: {error}"] += 1
            stand.check()
    except (Wrong, Killed, Exception) as error:  # noqa: BLE001 – whatever it is, the sequence is to be shown
        out.failure = f"step {at} {name}: {type(error).__name__}: {error}"
    finally:
        stand.drop()
    return out


def shortened(client: Client, plan: Plan) -> tuple[Plan, Outcome]:
    """Without the steps that the failure does not need."""
    last, steps = run(client, plan), list(plan.steps)
    kind = last.kind
    smaller = True
    while smaller:
        smaller = False
        for i in reversed(range(len(steps))):
            fewer = steps[:i] + steps[i + 1 :]
            done = run(client, replace(plan, steps=tuple(fewer)))
            if done.kind == kind:
                steps, last, smaller = fewer, done, True
    return replace(plan, steps=tuple(steps)), last
