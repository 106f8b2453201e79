"""PostgreSQL: positions in the write-ahead log."""

import re
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ch_sink.errors import PositionError
from ch_sink.sources.base import Blocks, Positions, numbers, texts, values, words

__all__ = ["POSTGRES", "PostgreSQL"]


class Block(msgspec.Struct, gc=False):
    """The ``source`` block's position: ``sequence`` is JSON text ``["lastCommitLsn","lsn"]``."""

    lsn: int | None = None
    sequence: str | None = None


class PostgreSQL:
    """Commit position: the first element of ``sequence``, the LSN of the last commit. Inner position: ``lsn``.

    ``lsn`` cannot order changes: transactions overlap in the log, and a snapshot holds old rows at a high LSN.
    The first element is null in the snapshot and in the first records of the stream: no commit position, which is
    then ``lsn`` or later.
    """

    name = "postgresql"
    connectors = frozenset(("postgresql",))
    wire: type[msgspec.Struct] = Block
    default_strategy: Literal["source_position", "kafka_offset"] = "source_position"
    unique_inner = True
    inner_is_log = True
    omits_values = True
    whole_before = False
    creates_new_rows = True
    deferrable = True
    per_database = False

    def positions(self, blocks: Blocks) -> Positions:
        """Positions; a missing or negative ``lsn`` is 0. Raises PositionError for what is no LSN."""
        stated = _commits(texts(blocks, "sequence"))
        if stated is None:
            known: dict[str | None, int] = {}
            commits: list[int] = []
            for text in values(blocks, "sequence"):
                head = text.partition(",")[0] if text else None
                commit = known.get(head)
                if commit is None:
                    commit = known[head] = _first(head)
                commits.append(commit)
            stated = np.array(commits, dtype=np.uint64)
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


def _first(head: str | None) -> int:
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
