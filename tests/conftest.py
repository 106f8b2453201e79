"""Fixtures that tests of several packages share, and how Hypothesis draws.

The profile ``steady`` (the default) draws the same examples in every run, so that a green run says something about the
next one; ``HYPOTHESIS_PROFILE=search`` draws new ones.
"""

import os

from hypothesis import settings

pytest_plugins = (
    "tests.support.endpoint",
    "tests.support.hand_tables",
    "tests.support.kafka",
    "tests.support.spark",
)

settings.register_profile("steady", derandomize=True, database=None, deadline=None)
settings.register_profile("search", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))
