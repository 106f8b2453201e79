"""The demo of compose/: everything is started, the sources change, and the tables equal them. Takes many minutes."""

import subprocess
from pathlib import Path

import pytest

from tests.containers.conftest import docker_engine

DEMO = Path(__file__).resolve().parents[2] / "compose" / "demo.sh"


@pytest.fixture
def _needs_a_server() -> None:
    """Brings its own."""
    docker_engine()
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode:
        pytest.skip("docker has no compose plugin")


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("arguments", [(), ("--avro",)], ids=["json", "avro"])
def test_the_tables_follow_their_sources(arguments: tuple[str, ...]) -> None:
    try:
        ran = subprocess.run([str(DEMO), *arguments], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr[-4000:]
    finally:
        subprocess.run([str(DEMO), "down"], capture_output=True, check=False)
