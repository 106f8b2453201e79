"""MySQL and MariaDB: positions in the binary log."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from ch_sink.errors import PositionError
from ch_sink.source.base import Positions, words

__all__ = ["MYSQL", "MySQL"]

_FILE_BITS, _POS_BITS = 24, 40


class Block(msgspec.Struct, gc=False):
    """The ``source`` block's position: binlog file, offset of the event in it, row within the event."""

    file: str | None = None
    pos: int | None = None
    row: int | None = None


class MySQL:
    """Commit position: file number (24 bits), ``pos`` (40 bits). Inner position: ``pos``, ``row``.

    Neither GTIDs (a snapshot has none, and they are no order) nor ``row`` (it starts again within an event)
    can order changes.
    """

    name = "mysql"
    connectors = frozenset(("mysql", "mariadb"))
    wire: type[msgspec.Struct] = Block
    default_strategy: Literal["source_position", "kafka_offset"] = "source_position"
    omits_values = False
    deferrable = False

    def positions(self, blocks: Sequence[Any]) -> Positions:
        """Positions; an empty file or a missing ``pos`` is 0. Raises PositionError for a number that does not fit."""
        numbers: dict[str | None, int] = {}
        files = [block.file for block in blocks]
        for name in set(files):
            numbers[name] = _file_number(name)
        file = np.array([numbers[name] for name in files], dtype=np.uint64)
        pos = [block.pos or 0 for block in blocks]
        row = [block.row or 0 for block in blocks]
        _check(pos, "pos", _POS_BITS)
        _check(row, "row", 32)
        offsets = np.array(pos, dtype=np.int64)
        offsets[offsets < 0] = 0
        low = (file << np.uint64(_POS_BITS)) | offsets.astype(np.uint64)
        # Without a file the offset alone would order events of different files.
        low[file == 0] = 0
        rows = np.maximum(np.array(row, dtype=np.int64), 0).astype(np.uint64)
        commit = np.zeros((len(blocks), 2), dtype=np.uint64)
        commit[:, 1] = low
        return Positions(commit, words(offsets.astype(np.uint64), rows), low != 0)


def _file_number(name: str | None) -> int:
    """The number behind the last dot of ``mysql-bin.000012``; 0 for no file."""
    if not name:
        return 0
    digits = name.rpartition(".")[2]
    if not (digits.isascii() and digits.isdigit()):
        raise PositionError(f"source.file: {name!r} has no number behind its last dot")
    number = int(digits[:20])
    if number >= 1 << _FILE_BITS or len(digits) > 20:
        raise PositionError(
            f"source.file: the number of {name!r} does not fit {_FILE_BITS} bits",
            hint="set version.strategy: kafka_offset",
        )
    return number


def _check(values: list[int], field: str, bits: int) -> None:
    greatest = max(values, default=0)
    if greatest >= 1 << bits:
        raise PositionError(
            f"source.{field}: {greatest} does not fit {bits} bits", hint="set version.strategy: kafka_offset"
        )
    if min(values, default=0) < -(1 << 63):
        raise PositionError(f"source.{field}: {min(values)} is no position")


MYSQL = MySQL()
