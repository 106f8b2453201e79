"""The process of which Spark forks an executor's Python workers: it imports once what all of them need.

Each worker would spend two seconds of processor time on the same imports, just when other processes start, too.
PySpark imports nothing here, since a library that has started threads may not survive a fork. Of those that are
imported here two start threads, and both are made for it: Arrow's allocator stops its own around a fork, and OpenBLAS,
which nothing here uses, starts none when OPENBLAS_NUM_THREADS is 1. Workers open their own clients after the fork.
"""

import gc
import os


def main() -> None:
    """Import ahead, then serve as PySpark's own daemon does."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    import pyarrow as pa
    import pyspark.worker  # noqa: F401
    from pyspark.daemon import manager

    import ch_sink.wiring.worker  # noqa: F401

    pa.array([0])  # at its first array Arrow imports pandas, if that is installed: half a second
    gc.freeze()  # each worker would go over the modules' objects after each of its tasks
    manager()


if __name__ == "__main__":
    main()
