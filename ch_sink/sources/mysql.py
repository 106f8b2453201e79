"""MySQL and MariaDB: positions in the binary log."""

from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from ch_sink.errors import PositionError
from ch_sink.sources.base import Blocks, Positions, numbers, values, words

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
    unique_inner = False
    inner_is_log = False
    omits_values = False
    whole_before = True
    creates_new_rows = True
    deferrable = False
    per_database = False

    def positions(self, blocks: Blocks) -> Positions:
        """Positions; an empty file or a missing ``pos`` is 0. Raises PositionError for a number that does not fit."""
        file = _file_numbers(values(blocks, "file"))
        offsets = _numbers(blocks, "pos", _POS_BITS)
        rows = _numbers(blocks, "row", 32)
        low = (file << np.uint64(_POS_BITS)) | offsets
        # Without a file the offset alone would order events of different files.
        low[file == 0] = 0
        commit = np.zeros((len(blocks), 2), dtype=np.uint64)
        commit[:, 1] = low
        return Positions(commit, words(offsets, rows), low != 0)


def _file_numbers(names: list[str | None]) -> npt.NDArray[np.uint64]:
    if names and names.count(names[0]) == len(names):
        return np.full(len(names), _file_number(names[0]), dtype=np.uint64)
    numbers = {name: _file_number(name) for name in set(names)}
    return np.array([numbers[name] for name in names], dtype=np.uint64)


def _file_number(name: str | None) -> int:
    """The number after the last dot of ``mysql-bin.000012``; 0 for no file."""
    if not name:
        return 0
    digits = name.rpartition(".")[2]
    if not (digits.isascii() and digits.isdigit()):
        raise PositionError(f"source.file: {name!r} has no number after its last dot")
    number = int(digits[:20])
    if number >= 1 << _FILE_BITS or len(digits) > 20:
        raise PositionError(
            f"source.file: the number of {name!r} does not fit {_FILE_BITS} bits",
            hint="set version.strategy: kafka_offset",
        )
    return number


def _numbers(blocks: Blocks, field: str, bits: int) -> npt.NDArray[np.uint64]:
    """Non-negative numbers; negative ones are impossible and count as 0."""
    try:
        found = numbers(blocks, field)
    except OverflowError:
        given = [value or 0 for value in values(blocks, field)]
        found = np.array([max(min(value, 1 << 62), -1) for value in given], dtype=np.int64)
    if found.max(initial=0) >= 1 << bits:
        raise PositionError(
            f"source.{field}: {max(value or 0 for value in values(blocks, field))} does not fit {bits} bits",
            hint="set version.strategy: kafka_offset",
        )
    return np.maximum(found, 0).astype(np.uint64)


MYSQL = MySQL()
