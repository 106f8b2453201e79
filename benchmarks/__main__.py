"""Benchmarks: ``python -m benchmarks [NAME] [OPTION]…``; without a name, ``suite``. ``NAME --help`` lists its options.

suite     the whole job on generated topics, against what limits it
compare   whether two runs of the suite differ by more than their spread
micro     each step of a worker alone; decoding against msgspec
stages    where the processor time of a worker goes
memory    peak memory of a job against the length of its topic
fleet     one job of many topics
partitions  one topic of many partitions
frames    micro-batches of a DataFrame over many partitions
cluster   two Spark workers of one core against local[2]
merge     planning of decoded chunks
ledger    what a stream asks of an old ledger
engines   inserts and reads on each installed version of ClickHouse
verify    the comparison of a large table with PostgreSQL
rollups   two rollups beside a table, and what they save their readers
"""

import sys
from importlib import import_module

_MAIN = {
    "suite": "benchmarks.suite.run",
    "compare": "benchmarks.suite.compare",
    "micro": "benchmarks.micro",
    "stages": "benchmarks.stages",
    "memory": "benchmarks.memory",
    "fleet": "benchmarks.fleet",
    "partitions": "benchmarks.partitions",
    "frames": "benchmarks.frames",
    "cluster": "benchmarks.cluster",
    "merge": "benchmarks.merge",
    "ledger": "benchmarks.ledger",
    "engines": "benchmarks.engines",
    "verify": "benchmarks.verify",
    "rollups": "benchmarks.rollups",
}
"""Name → module whose ``main`` takes the other arguments."""


def main() -> int:
    name, arguments = "suite", sys.argv[1:]
    if arguments and arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0
    if arguments and not arguments[0].startswith("-"):
        name, *arguments = arguments
    if name not in _MAIN:
        print(__doc__, file=sys.stderr)
        return 2
    return int(import_module(_MAIN[name]).main(arguments) or 0)


if __name__ == "__main__":
    sys.exit(main())
