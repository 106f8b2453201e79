"""The compiled library, for tests of what it does."""

import ctypes

import pytest

from ch_sink.decode.native.library import library as compiled


@pytest.fixture
def library() -> ctypes.CDLL:
    """Its functions; the test is skipped where it was not compiled."""
    found = compiled()
    if found is None:
        pytest.skip("the scanner is not compiled")
    return found
