"""SQL Server and Db2: positions in the transaction log, as their change tables give them."""

import re
from typing import Literal

import msgspec
import numpy as np

from ch_sink.errors import PositionError
from ch_sink.sources.base import Blocks, Positions, split, words


class SQLServerBlock(msgspec.Struct, gc=False):
    """The ``source`` block's position: two log sequence numbers and the event's number at its LSN."""

    commit_lsn: str | None = None
    change_lsn: str | None = None
    event_serial_no: int | str | None = None


class SQLServer:
    """Commit position: ``commit_lsn`` (4 + 4 + 2 bytes). Inner position: ``change_lsn``, ``event_serial_no``.

    The two halves of a key change may share a serial number, or have consecutive ones, and may come without headers.
    Each database has a log of its own, and one connector reads several, which a router may send to one topic.
    Keys exchanged by one statement come as updates of both rows, so a key never has two rows. With
    ``data.query.mode=direct`` inner positions may step back within a transaction, so they order nothing.
    """

    name = "sqlserver"
    connectors = frozenset(("sqlserver",))
    wire: type[msgspec.Struct] = SQLServerBlock
    default_strategy: Literal["source_position", "kafka_offset"] = "source_position"
    unique_inner = True
    inner_is_log = False
    omits_values = True
    whole_before = False  # unchanged (max) values may be the placeholder there too
    creates_new_rows = True
    deferrable = False
    per_database = True

    def positions(self, blocks: Blocks) -> Positions:
        """Positions; a missing LSN is 0 (snapshots have no ``change_lsn``). Raises PositionError for a bad one."""
        known: dict[str | None, int] = {None: 0}
        for block in blocks:
            for field in ("commit_lsn", "change_lsn"):
                text = getattr(block, field)
                if text not in known:
                    known[text] = lsn(text, field)
        commit = [known[block.commit_lsn] for block in blocks]
        inner = [(known[block.change_lsn] << 48) | _serial(block.event_serial_no) for block in blocks]
        return Positions(
            words(*split(commit)), words(*split(inner)), np.array([c != 0 for c in commit], dtype=np.bool_)
        )


_LSN = re.compile(r"([0-9a-f]{1,8}):([0-9a-f]{1,8}):([0-9a-f]{1,4})", re.ASCII | re.IGNORECASE)
_NONE = re.compile(r"(?:NULL|[0:]*)", re.ASCII)


def lsn(text: str, field: str) -> int:
    """The 80-bit number of ``00000025:00000458:0004``; 0 for none (empty, ``NULL``, ``00``)."""
    match = _LSN.fullmatch(text)
    if match is not None:
        return int(match[1], 16) << 48 | int(match[2], 16) << 16 | int(match[3], 16)
    if _NONE.fullmatch(text):
        return 0
    raise PositionError(f"source.{field}: {text[:80]!r} is not a log sequence number (8:8:4 hexadecimal digits)")


def _serial(value: int | str | None) -> int:
    """The event's number, which some versions write as text."""
    if value is None or value == "":
        return 0
    if isinstance(value, str) and not (value.isascii() and value.isdigit() and len(value) < 20):
        raise PositionError(f"source.event_serial_no: {value[:80]!r} is not a number")
    number = int(value)
    if not 0 <= number < 1 << 48:
        raise PositionError(f"source.event_serial_no: {number} does not fit 48 bits")
    return number


SQLSERVER = SQLServer()


_LOW = (1 << 80) - 1


class Db2Block(msgspec.Struct, gc=False):
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
    wire: type[msgspec.Struct] = Db2Block
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


_DB2_LSN = re.compile(r"(?:NULL|[0-9a-f]{8}:[0-9a-f]{8}:(?:[0-9a-f]{4}|[0-9a-f]{16})|[0:]*)", re.ASCII | re.IGNORECASE)


def _lsn(text: str, field: str) -> int:
    """The number of ``00000000:00001e36:000000000004a1b4``, from 10 or 16 bytes to 128 bits; 0 for none."""
    if _DB2_LSN.fullmatch(text) is None:
        raise PositionError(f"source.{field}: {text[:80]!r} is not a log sequence number (8:8:16 hexadecimal digits)")
    digits = text.replace(":", "").upper().replace("NULL", "")
    return int(digits.ljust(32, "0"), 16) if digits.strip("0") else 0


def _change(text: str | None) -> int:
    """The last 10 bytes of ``change_lsn``."""
    if not text:
        return 0
    _lsn(text, "change_lsn")
    return int(text.replace(":", "").upper().replace("NULL", "") or "0", 16) & _LOW


DB2 = Db2()
