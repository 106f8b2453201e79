"""Positions of SQL Server's change tables."""

import pytest

from ch_sink.errors import PositionError
from ch_sink.source.sqlserver import SQLSERVER, Block


def numbers(block: Block) -> tuple[int, int, bool]:
    found = SQLSERVER.positions([block])
    commit, inner = ((int(w[0, 0]) << 64) | int(w[0, 1]) for w in (found.commit, found.inner))
    return commit, inner, bool(found.has_commit[0])


def test_the_commit_position_is_the_commit_lsn_whole() -> None:
    block = Block("00000027:00000758:0005", "00000027:00000758:0003", 1)
    assert numbers(block) == (0x27_0000_0758_0005, (0x27_0000_0758_0003 << 48) | 1, True)
    assert numbers(Block("FFFFFFFF:ffffffff:ffff", None, None)) == ((1 << 80) - 1, 0, True)


def test_snapshots_have_no_change_lsn() -> None:
    assert numbers(Block("00000027:00000758:0005", None, None))[1:] == (0, True)
    assert numbers(Block(None, None, None)) == (0, 0, False)


@pytest.mark.parametrize("text", ["00", "NULL", "", "00000000:00000000:0000"])
def test_a_position_of_nothing_is_none(text: str) -> None:
    assert numbers(Block(text, text, None)) == (0, 0, False)


def test_serial_numbers_may_be_text() -> None:
    lsn = "00000027:00000758:0003"
    assert numbers(Block(lsn, lsn, "2")) == numbers(Block(lsn, lsn, 2))


@pytest.mark.parametrize(
    ("block", "field"),
    [
        (Block("27:758", None, None), "commit_lsn"),
        (Block("00000027:00000758:0003", "x", None), "change_lsn"),
        (Block("00000027:00000758:0003", None, "two"), "event_serial_no"),
        (Block("00000027:00000758:0003", None, 1 << 48), "event_serial_no"),
        (Block("00000027:00000758:0003", None, -1), "event_serial_no"),
    ],
)
def test_what_is_no_position_is_named(block: Block, field: str) -> None:
    with pytest.raises(PositionError, match=field):
        SQLSERVER.positions([block])
