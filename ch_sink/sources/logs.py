"""MySQL and MariaDB, PostgreSQL, Oracle, SQL Server, Db2: positions in the log that the database writes."""

import re
from functools import lru_cache

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ch_sink.errors import PositionError
from ch_sink.sources.base import Blocks, Positions, Source, Strategy, numbers, stated_positions, texts, values, words

_FILE_BITS, _POS_BITS = 24, 40
_RECENT = 64
"""Texts of positions that are remembered: neighbours have the same ones."""


class MySQLBlock(msgspec.Struct, gc=False):
    """The ``source`` block's position: binlog file, offset of the event in it, row within the event."""

    file: str | None = None
    pos: int | None = None
    row: int | None = None


class MySQL(Source):
    """Commit position: file number (24 bits), ``pos`` (40 bits). Inner position: ``pos``, ``row``.

    Neither GTIDs (a snapshot has none, and they do not order changes) nor ``row`` (it starts again within an event)
    can order changes.
    """

    name = "mysql"
    connectors = frozenset(("mysql", "mariadb"))
    wire = MySQLBlock
    default_strategy: Strategy = "source_position"

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


class PostgresBlock(msgspec.Struct, gc=False):
    """The ``source`` block's position: ``sequence`` is JSON text ``["lastCommitLsn","lsn"]``."""

    lsn: int | None = None
    sequence: str | None = None


class PostgreSQL(Source):
    """Commit position: the first element of ``sequence``, the LSN of the last commit. Inner position: ``lsn``.

    ``lsn`` cannot order changes: transactions overlap in the log, and a snapshot holds old rows at a high LSN.
    The first element is null in the snapshot and in the first records of the stream: no commit position, which is
    then ``lsn`` or later.
    """

    name = "postgresql"
    connectors = frozenset(("postgresql",))
    wire = PostgresBlock
    default_strategy: Strategy = "source_position"
    unique_inner = True
    inner_is_log = True
    omits_values = True
    omits_long = True
    deferrable = True

    def positions(self, blocks: Blocks) -> Positions:
        """Positions; a missing or negative ``lsn`` is 0. Raises PositionError for what is not an LSN."""
        stated = _commits(texts(blocks, "sequence"))
        if stated is None:
            heads = [text.partition(",")[0] if text else "" for text in values(blocks, "sequence")]
            stated = np.array([_first(head) for head in heads], dtype=np.uint64)
        try:
            lsns = np.maximum(numbers(blocks, "lsn"), 0).astype(np.uint64)
        except OverflowError:
            inner = [lsn or 0 for lsn in values(blocks, "lsn")]
            if max(inner) >= 1 << 64:
                raise PositionError(f"source.lsn: {max(inner)} does not fit 64 bits") from None
            lsns = np.array([max(lsn, 0) for lsn in inner], dtype=np.uint64)
        has = stated != 0
        return Positions(words(0, np.where(has, stated, lsns)), words(0, lsns), has)


def _commits(sequences: pa.Array | None) -> npt.NDArray[np.uint64] | None:
    """The first elements of texts that all have the connector's form, 0 for null; None if one has another form."""
    if sequences is None or not pc.all(pc.starts_with(sequences, '["')).as_py():
        return None
    heads = pc.list_element(pc.split_pattern(sequences, '",', max_splits=1), 0)
    try:
        found = pc.utf8_slice_codeunits(heads, 2).cast(pa.uint64())
    except pa.ArrowInvalid:
        return None
    return np.asarray(pc.fill_null(found, 0))


# Blanks are possessive: two optional runs of them side by side would be divided in every possible way.
_FIRST = re.compile(r'\s*+\[\s*+(?:null|"?(-?\d{1,20})"?)?\s*+\]?\s*+', re.ASCII)


@lru_cache(_RECENT)
def _first(head: str) -> int:
    """The first element of ``sequence``, given its text up to the comma; 0 if there is none."""
    if not head:
        return 0
    match = _FIRST.fullmatch(head)
    if match is None:
        raise PositionError(f"source.sequence: {head[:80]!r} is not the beginning of a list of two LSNs")
    commit = int(match[1] or 0)
    if commit >= 1 << 64:
        raise PositionError(f"source.sequence: {commit} does not fit 64 bits")
    return max(commit, 0)


POSTGRES = PostgreSQL()


class OracleBlock(msgspec.Struct, gc=False):
    """The ``source`` block's position: SCNs as decimal text (numbers in old versions), places in the redo log."""

    scn: str | int | None = None
    commit_scn: str | int | None = None
    lcr_position: str | None = None
    rs_id: str | None = None
    ssn: int | str | None = None


class Oracle(Source):
    """Commit position: ``commit_scn``, with XStream the one that begins ``lcr_position``. Inner position: ``scn``,
    then the place of the redo record (``rs_id``, ``ssn``) or of the logical change record.

    ``scn`` cannot order changes: transactions overlap. Snapshot rows have nothing else; what states no commit
    position was committed at its ``scn`` or later. LOB columns come as the placeholder, in both images. Unique keys
    are checked at a statement's end, so that one statement can exchange two.
    """

    name = "oracle"
    connectors = frozenset(("oracle",))
    wire = OracleBlock
    default_strategy: Strategy = "source_position"
    unique_inner = True
    omits_values = True
    deferrable = True

    def positions(self, blocks: Blocks) -> Positions:
        """Positions; a missing SCN is 0. Raises PositionError for a malformed one."""
        commit: list[int] = []
        stated: list[bool] = []
        inner: list[int] = []
        for block in blocks:
            at, scn = _scn(block.commit_scn, "commit_scn"), _scn(block.scn, "scn")
            place = _place(block.rs_id, block.ssn)
            if block.lcr_position:
                lcr = _lcr(block.lcr_position)
                at, scn, place = at or lcr[0], lcr[1], lcr[2]
            commit.append(at or scn)
            stated.append(at != 0)
            inner.append(scn << 64 | place)
        return stated_positions(commit, inner, stated)


@lru_cache(_RECENT, typed=True)
def _scn(value: str | int | None, field: str) -> int:
    """An SCN; 0 for none (``null`` in some versions)."""
    if value is None or value in ("", "null"):
        return 0
    if isinstance(value, str) and not (value.isascii() and value.isdigit() and len(value) <= 20):
        raise PositionError(f"source.{field}: {value[:80]!r} is not a system change number (decimal digits)")
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
        raise PositionError(f"source.ssn: {ssn!r} is not a number") from error
    return int(match[1], 16) << 32 | int(match[2], 16) << 16 | statement & 0xFFFF


_LCR = re.compile(r"(?:[0-9a-f]{66}|[0-9a-f]{58})", re.ASCII | re.IGNORECASE)


def _lcr(text: str) -> tuple[int, int, int]:
    """Commit SCN, SCN and the place at it of a logical change record's position.

    Both SCNs (8 bytes each, 6 in the older form) are followed by 8 bytes, then by one byte more.
    """
    if _LCR.fullmatch(text) is None:
        raise PositionError(
            f"source.lcr_position: {text[:80]!r} is not a position of 33 or 29 bytes in hexadecimal digits",
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


class SQLServerBlock(msgspec.Struct, gc=False):
    """The ``source`` block's position: two log sequence numbers and the event's number at its LSN."""

    commit_lsn: str | None = None
    change_lsn: str | None = None
    event_serial_no: int | str | None = None


class SQLServer(Source):
    """Commit position: ``commit_lsn`` (4 + 4 + 2 bytes). Inner position: ``change_lsn``, ``event_serial_no``.

    The two halves of a key change may share a serial number, or have consecutive ones, and may come without headers.
    Each database has a log of its own, and one connector reads several, which a router may send to one topic.
    Keys exchanged by one statement come as updates of both rows, so a key never has two rows. With
    ``data.query.mode=direct`` inner positions may step back within a transaction, so they order nothing. Unchanged
    (max) values may be the placeholder in before images, too.
    """

    name = "sqlserver"
    connectors = frozenset(("sqlserver",))
    wire = SQLServerBlock
    default_strategy: Strategy = "source_position"
    unique_inner = True
    omits_values = True
    per_database = True

    def positions(self, blocks: Blocks) -> Positions:
        """Positions; a missing LSN is 0 (snapshots have no ``change_lsn``). Raises PositionError for a bad one."""
        commit = [lsn(block.commit_lsn, "commit_lsn") for block in blocks]
        inner = [lsn(block.change_lsn, "change_lsn") << 48 | _serial(block.event_serial_no) for block in blocks]
        return stated_positions(commit, inner, [c != 0 for c in commit])


_LSN = re.compile(r"([0-9a-f]{1,8}):([0-9a-f]{1,8}):([0-9a-f]{1,4})", re.ASCII | re.IGNORECASE)
_NONE = re.compile(r"(?:NULL|[0:]*)", re.ASCII)


@lru_cache(_RECENT)
def lsn(text: str | None, field: str) -> int:
    """The 80-bit number of ``00000025:00000458:0004``; 0 for none (empty, ``NULL``, ``00``)."""
    if text is None:
        return 0
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


class Db2(Source):
    """Commit position: the first 10 bytes of ``commit_lsn``. Inner position: its other bytes, then ``change_lsn``.

    The last 6 of 16 bytes distinguish transactions that were written to the log together; Kafka's order decides there.
    Unique keys are checked at a statement's end, so that one statement can exchange two. Images are whole, but those of
    updates on z/OS have no ``before``.
    """

    name = "db2"
    connectors = frozenset(("db2",))
    wire = Db2Block
    default_strategy: Strategy = "source_position"
    unique_inner = True
    deferrable = True

    def positions(self, blocks: Blocks) -> Positions:
        """Positions; a missing LSN is 0 (snapshots have no ``change_lsn``). Raises PositionError for a bad one."""
        commits = [_lsn(block.commit_lsn, "commit_lsn") for block in blocks]
        changes = [_change(block.change_lsn) for block in blocks]
        commit = [whole >> 48 for whole in commits]
        inner = [(whole & 0xFFFFFFFFFFFF) << 80 | change for whole, change in zip(commits, changes, strict=True)]
        return stated_positions(commit, inner, [c != 0 for c in commit])


_DB2_LSN = re.compile(r"(?:NULL|[0-9a-f]{8}:[0-9a-f]{8}:(?:[0-9a-f]{4}|[0-9a-f]{16})|[0:]*)", re.ASCII | re.IGNORECASE)


@lru_cache(_RECENT)
def _lsn(text: str | None, field: str) -> int:
    """The number of ``00000000:00001e36:000000000004a1b4``, from 10 or 16 bytes to 128 bits; 0 for none."""
    if text is None:
        return 0
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
