"""A stream of ranges as a program of its own: prints the ranges of each batch, and kills itself in the one named.

``python -m tests.support.range_stream BOOTSTRAP TOPIC CHECKPOINT START LIMIT [KILL_IN_BATCH]``
"""

import json
import os
import signal
import sys

from pyspark.sql import DataFrame

from ch_sink.spark.session import build_session
from ch_sink.spark.source import read_ranges


def main(bootstrap: str, topic: str, checkpoint: str, start: str, limit: str, kill: str = "-1") -> None:
    spark = build_session("range stream", "local[1]")

    def batch(ranges: DataFrame, number: int) -> None:
        rows = [list(row) for row in ranges.select("partition", "start", "end", "lost").collect()]
        sys.stdout.write(json.dumps({"batch": number, "ranges": sorted(rows)}) + "\n")
        sys.stdout.flush()
        if number == int(kill):
            os.kill(os.getpid(), signal.SIGKILL)

    ranges = read_ranges(
        spark, {"bootstrap.servers": bootstrap}, topic, starting_offsets=start, max_offsets=int(limit), chunk_offsets=10
    )
    query = ranges.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    query.foreachBatch(batch).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
