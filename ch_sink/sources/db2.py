"""Db2: positions in the recovery log, as the change-data tables of SQL Replication give them."""

import re
from typing import Literal

import msgspec
import numpy as np

from ch_sink.errors import PositionError
from ch_sink.sources.base import Blocks, Positions, split, words

__all__ = ["DB2", "Db2"]

_LOW = (1 << 80) - 1


class Block(msgspec.Struct, gc=False):
    """The ``source`` block's position: two log sequence numbers of 16 bytes (10 on z/OS)."""

    commit_lsn: str | None = None
    change_lsn: str | None = None


class Db2:
    """Commit position: the first 10 bytes of ``commit_lsn``. Inner position: its other bytes, then ``change_lsn``.

    The last 6 of 16 bytes distinguish transactions that were written to the log together; Kafka's order decides there.
    Unique keys are checked at a statement's end, so that one statement can exchange two. Images are whole, but those of
    updates on z/OS have no ``before``.
    """

    name = "db2"
    connectors = frozenset(("db2",))
    wire: type[msgspec.Struct] = Block
    default_strategy: Literal["source_position", "kafka_offset"] = "source_position"
    unique_inner = True
    inner_is_log = False
    omits_values = False
    whole_before = True
    creates_new_rows = True
    deferrable = True
    per_database = False

    def positions(self, blocks: Blocks) -> Positions:
        """Positions; a missing LSN is 0 (snapshots have no ``change_lsn``). Raises PositionError for a bad one."""
        known: dict[str | None, int] = {None: 0}
        commits = []
        for block in blocks:
            text = block.commit_lsn
            whole = known.get(text)
            if whole is None:
                whole = known[text] = _lsn(text, "commit_lsn")
            commits.append(whole)
        changes = [_change(block.change_lsn) for block in blocks]
        commit = [whole >> 48 for whole in commits]
        inner = [(whole & 0xFFFFFFFFFFFF) << 80 | change for whole, change in zip(commits, changes, strict=True)]
        return Positions(
            words(*split(commit)), words(*split(inner)), np.array([c != 0 for c in commit], dtype=np.bool_)
        )


_LSN = re.compile(r"(?:NULL|[0-9a-f]{8}:[0-9a-f]{8}:(?:[0-9a-f]{4}|[0-9a-f]{16})|[0:]*)", re.ASCII | re.IGNORECASE)


def _lsn(text: str, field: str) -> int:
    """The number of ``00000000:00001e36:000000000004a1b4``, from 10 or 16 bytes to 128 bits; 0 for none."""
    if _LSN.fullmatch(text) is None:
        raise PositionError(f"source.{field}: {text[:80]!r} is no log sequence number (8:8:16 hexadecimal digits)")
    digits = text.replace(":", "").upper().replace("NULL", "")
    return int(digits.ljust(32, "0"), 16) if digits.strip("0") else 0


def _change(text: str | None) -> int:
    """The last 10 bytes of ``change_lsn``."""
    if not text:
        return 0
    _lsn(text, "change_lsn")
    return int(text.replace(":", "").upper().replace("NULL", "") or "0", 16) & _LOW


DB2 = Db2()
