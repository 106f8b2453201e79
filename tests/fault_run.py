"""Runs drawn fault scripts for hours: `python -m tests.fault_run --scripts 100000 --out FILE`; with `--engine` over the
embedded engine, else in memory; with `--rollups` only tables that have rollups.

FILE holds the counts so far as JSON; what is wrong is appended to FILE.found, as the shortest script that shows it.
"""

import argparse
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path

from ch_sink.clickhouse import connect, execute
from ch_sink.table.rollup import RollupChoice
from tests.support.endpoint import endpoint, settings_for
from tests.support.fault_scripts import SCRIPTED, Script, faults_of_script, scripts, shrunk
from tests.support.fault_scripts_engine import engine_faults, engine_scripts
from tests.support.rollups import COMPUTED, PLAIN
from tests.support.state_tables import create_statement

EVERY = 10
ROLLED_UP = ("collapsing", "versioned")
OWN = ("ledger", "dead_letters", "handover", "pending")

WrongIn = Callable[[Script, Counter[str] | None], list[str]]
"""What is wrong at the end of a script; counts the faults that struck."""


def main() -> None:
    """Run the command line."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--scripts", type=int, default=100_000)
    given.add_argument("--each", type=int, default=20, help="scripts of each history and engine")
    given.add_argument("--first", type=int, default=1, help="the first history's seed")
    given.add_argument("--engine", action="store_true", help="over the embedded engine")
    given.add_argument("--rollups", action="store_true", help="only collapsing tables, with rollups")
    given.add_argument("--out", type=Path, required=True)
    chosen = given.parse_args()
    logging.disable(logging.CRITICAL)
    engines = ROLLED_UP if chosen.rollups else SCRIPTED
    histories = -(-chosen.scripts // (chosen.each * len(engines)))
    with ExitStack() as stack:
        drawn = engine_scripts if chosen.engine else scripts
        given_rollups = (COMPUTED if chosen.engine else PLAIN) if chosen.rollups else ()
        wrong_in = _engine(stack, given_rollups) if chosen.engine else partial(faults_of_script, rollups=given_rollups)
        taken = (s for s in drawn(chosen.first, histories, chosen.each) if s.case.engine in engines)
        _run(taken, wrong_in, chosen.out)


def _engine(stack: ExitStack, rollups: Sequence[RollupChoice]) -> WrongIn:
    """Runs a script over an engine that is stopped with the stack."""
    client = connect(settings_for(endpoint(stack).url))
    client.command("CREATE DATABASE scripts")
    execute(client, [create_statement(name, "scripts", name) for name in OWN])
    execute(client, [create_statement("columns", "scripts", "ch_sink_columns")])
    done = count(1)

    def wrong_in(script: Script, happened: Counter[str] | None) -> list[str]:
        if next(done) % EVERY == 0:  # entries of scripts that are over only make the ledger slow
            execute(client, [f"TRUNCATE TABLE scripts.{name}" for name in OWN])
        return engine_faults(client, "scripts", "scripts", script, happened, rollups)

    return wrong_in


def _run(drawn: Iterable[Script], wrong_in: WrongIn, out: Path) -> None:
    wrong, happened, began = 0, Counter[str](), time.monotonic()
    for done, script in enumerate(drawn, 1):
        if found := wrong_in(script, happened):
            wrong += 1
            short = shrunk(script, lambda other: wrong_in(other, None)) if wrong < 30 else ""
            with out.with_suffix(".found").open("a") as file:
                file.write(f"{script}\n    {found[0]}\n    {short}\n")
        if done % EVERY == 0:
            counts = {"scripts": done, "wrong": wrong, "history": script.case.seed}
            counts |= {"seconds": round(time.monotonic() - began), "cpu_seconds": round(time.process_time())}
            out.write_text(json.dumps({**counts, "faults": dict(happened)}) + "\n")


if __name__ == "__main__":
    main()
