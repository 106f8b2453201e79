"""A checkpoint folder is tried, not guessed from permission bits."""

from pathlib import Path

import pytest

from ch_sink.discovery.checkpoint import expect_checkpoint
from ch_sink.errors import ConfigError


def test_a_folder_that_can_be_made_is_accepted_and_left_unmade(tmp_path: Path) -> None:
    expect_checkpoint(str(tmp_path / "a" / "b"))
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_folders_is_refused_for_root_too() -> None:
    if not Path("/proc/self").exists():
        pytest.skip("needs /proc")
    with pytest.raises(ConfigError, match="/proc/nowhere/x cannot be written"):
        expect_checkpoint("/proc/nowhere/x")


def test_a_file_in_its_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file is not a folder"):
        expect_checkpoint(str(tmp_path / "file" / "x"))


def test_a_url_is_left_to_spark() -> None:
    expect_checkpoint("s3a://bucket/checkpoints")
