"""The engine for the tests of types and tables."""

from collections.abc import Iterator

import pytest

from tests.support.engine import Engine


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    opened = Engine()
    opened.run("CREATE DATABASE t")
    yield opened
    opened.close()
