"""A job of many streams and the limit of open files."""

import subprocess
import sys

_CODE = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from ch_sink.errors import ConfigError
from ch_sink.wiring.process import allow_descriptors
try:
    allow_descriptors({streams})
    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
except ConfigError as error:
    print(error, error.hint)
"""


def outcome(soft: int, hard: int, streams: int) -> str:
    code = _CODE.format(soft=soft, hard=hard, streams=streams)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    assert outcome(256, 4096, 106) == "4096"


def test_a_limit_that_is_too_low_is_named_with_the_remedy() -> None:
    said = outcome(256, 1024, 1000)
    assert "1000 streams need some 1300 open files, and this process may have 1024" in said
    assert "ulimit -n 1300" in said
