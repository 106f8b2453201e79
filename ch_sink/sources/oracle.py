"""Oracle: system change numbers (SCN), read through LogMiner, XStream or OpenLogReplicator."""

import re
from typing import Literal

import msgspec
import numpy as np

from ch_sink.errors import PositionError
from ch_sink.sources.base import Blocks, Positions, split, words

__all__ = ["ORACLE", "Oracle"]


class Block(msgspec.Struct, gc=False):
    """The ``source`` block's position: SCNs as decimal text (numbers in old versions), places in the redo log."""

    scn: str | int | None = None
    commit_scn: str | int | None = None
    lcr_position: str | None = None
    rs_id: str | None = None
    ssn: int | str | None = None


class Oracle:
    """Commit position: ``commit_scn``, with XStream the one that begins ``lcr_position``. Inner position: ``scn``,
    then the place of the redo record (``rs_id``, ``ssn``) or of the logical change record.

    ``scn`` cannot order changes: transactions overlap. Snapshot rows have nothing else; what states no commit
    position was committed at its ``scn`` or later. LOB columns come as the placeholder, in both images. Unique keys
    are checked at a statement's end, so that one statement can exchange two.
    """

    name = "oracle"
    connectors = frozenset(("oracle",))
    wire: type[msgspec.Struct] = Block
    default_strategy: Literal["source_position", "kafka_offset"] = "source_position"
    unique_inner = True
    inner_is_log = False
    omits_values = True
    whole_before = False
    creates_new_rows = True
    deferrable = True
    per_database = False

    def positions(self, blocks: Blocks) -> Positions:
        """Positions; a missing SCN is 0. Raises PositionError for a malformed one."""
        known: dict[str | int | None, int] = {None: 0}
        commit: list[int] = []
        stated: list[bool] = []
        inner: list[int] = []
        for block in blocks:
            text = block.commit_scn
            at = known.get(text)
            if at is None:
                at = known[text] = _scn(text, "commit_scn")
            scn = _scn(block.scn, "scn")
            place = _place(block.rs_id, block.ssn)
            if block.lcr_position:
                lcr = _lcr(block.lcr_position)
                at, scn, place = at or lcr[0], lcr[1], lcr[2]
            commit.append(at or scn)
            stated.append(at != 0)
            inner.append(scn << 64 | place)
        return Positions(words(0, split(commit)[1]), words(*split(inner)), np.array(stated, dtype=np.bool_))


def _scn(value: str | int | None, field: str) -> int:
    """An SCN; 0 for none (``null`` in some versions)."""
    if value is None or value in ("", "null"):
        return 0
    if isinstance(value, str) and not (value.isascii() and value.isdigit() and len(value) <= 20):
        raise PositionError(f"source.{field}: {value[:80]!r} is no system change number (decimal digits)")
    number = int(value)
    if number >= 1 << 64:
        raise PositionError(f"source.{field}: {number} does not fit 64 bits")
    return max(number, 0)


_RS_ID = re.compile(r"\s*(?:0x)?[0-9a-f]{1,8}\.([0-9a-f]{1,8})\.([0-9a-f]{1,4})\s*", re.ASCII | re.IGNORECASE)


def _place(rs_id: str | None, ssn: int | str | None) -> int:
    """Block 32 | byte 16 | statement 16 of ``0x0034b1.00143517.0010``; 0 if it is absent or has another form.

    The log's own number is left out: it follows the SCN.
    """
    match = _RS_ID.fullmatch(rs_id) if rs_id else None
    if match is None:
        return 0
    try:
        statement = int(ssn or 0)
    except ValueError as error:
        raise PositionError(f"source.ssn: {ssn!r} is no number") from error
    return int(match[1], 16) << 32 | int(match[2], 16) << 16 | statement & 0xFFFF


_LCR = re.compile(r"(?:[0-9a-f]{66}|[0-9a-f]{58})", re.ASCII | re.IGNORECASE)


def _lcr(text: str) -> tuple[int, int, int]:
    """Commit SCN, SCN and the place at it of a logical change record's position.

    Both SCNs (8 bytes each, 6 in the older form) are followed by 8 bytes, then by one byte more.
    """
    if _LCR.fullmatch(text) is None:
        raise PositionError(
            f"source.lcr_position: {text[:80]!r} is no position of 33 or 29 bytes in hexadecimal digits",
            hint="set version.strategy: kafka_offset",
        )
    size = (len(text) - 34) // 2
    second = size + 16
    return (
        int(text[:size], 16),
        int(text[second : second + size], 16),
        int(text[second + size : second + size + 16], 16),
    )


ORACLE = Oracle()
