"""Runs drawn fault scripts for hours, in memory: `python -m tests.fault_run --scripts 100000 --out FILE`.

FILE holds the counts so far as JSON; what is wrong is appended to FILE.found, as the shortest script that shows it.
"""

import argparse
import json
import logging
import time
from collections import Counter
from pathlib import Path

from tests.support.fault_scripts import SCRIPTED, faults_of_script, scripts, shrunk

EVERY = 200


def main() -> None:
    """Run the command line."""
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--scripts", type=int, default=100_000)
    given.add_argument("--each", type=int, default=20, help="scripts of each history and engine")
    given.add_argument("--first", type=int, default=1, help="the first history's seed")
    given.add_argument("--out", type=Path, required=True)
    chosen = given.parse_args()
    logging.disable(logging.CRITICAL)
    histories = -(-chosen.scripts // (chosen.each * len(SCRIPTED)))
    wrong, happened, began = 0, Counter[str](), time.process_time()
    for done, script in enumerate(scripts(chosen.first, histories, chosen.each), 1):
        found = faults_of_script(script, happened)
        if found:
            wrong += 1
            with chosen.out.with_suffix(".found").open("a") as file:
                file.write(f"{script}\n    {found[0]}\n    {shrunk(script) if wrong < 30 else ''}\n")
        if done % EVERY == 0 or done == chosen.scripts:
            seconds = time.process_time() - began
            counts = {"scripts": done, "wrong": wrong, "history": script.case.seed, "cpu_seconds": round(seconds)}
            chosen.out.write_text(json.dumps({**counts, "faults": dict(happened)}) + "\n")


if __name__ == "__main__":
    main()
