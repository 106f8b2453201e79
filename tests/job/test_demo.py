"""``make demo``, the first thing that anyone runs: several streams by one job, and one of them read again."""

import pytest

from tests.support.sink import ROOT, command

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]


def test_all_tables_of_the_demo_equal_their_source() -> None:
    shown = command("demo")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "tables equal their source" in shown.stdout
    assert "not equal" not in shown.stdout
    # The README shows this output, shortened.
    _, _, block = (ROOT / "README.md").read_text(encoding="utf-8").partition("make demo\n```\n```\n")
    lines = [line.partition(" (")[0] for line in block.partition("\n```")[0].splitlines() if line != "…"]
    assert len(lines) > 8
    assert [line for line in lines if line not in shown.stdout] == []
