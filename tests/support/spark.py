"""The Spark session of the tests."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from ch_sink.spark.installed import find_java
from ch_sink.spark.session import build_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session with two cores; the test is skipped, with the reason, on a machine without Java."""
    if find_java() is None:
        pytest.skip("needs Java 17 or newer")
    session = build_session("ch_sink tests", "local[2]", {"spark.sql.shuffle.partitions": "2"})
    yield session
    session.stop()
