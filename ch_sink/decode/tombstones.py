"""Null values: deletes if events are flattened and nothing else states a delete, else tombstones."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from ch_sink.decode.assemble import Part
from ch_sink.decode.flattened.added_fields import block_types, flat_connector, flattened
from ch_sink.decode.flattened.added_headers import HeaderFields
from ch_sink.decode.flattened.reader import missing_position
from ch_sink.decode.json.columns import Fault
from ch_sink.errors import DecodeError, PositionError
from ch_sink.model.change import Op, Records
from ch_sink.model.policy import Policy
from ch_sink.sources import FLATTENED, Flattened

__all__ = ["Tombstones"]


class Tombstones:
    """Decides which null values of a topic are deletes, and turns those into events.

    With ``tombstones: auto`` the last row before a null value decides.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._headers = HeaderFields(policy.events.headers_prefix)

    def deletes(
        self,
        places: Sequence[int],
        keys: Sequence[bytes | None],
        parts: Sequence[Part],
        *,
        known: bool,
        before: bool | None,
    ) -> list[int]:
        """The null values (by place in the chunk) that delete a row. A null value with a null key deletes nothing.

        ``known``: the records waited for a hand-over, so they are deletes. ``before``: whether the last row before the
        chunk makes later null values deletes; None if there was no row, so that the chunk's first row decides.
        """
        chosen = self._policy.events.tombstones
        if known or chosen != "auto":
            means = np.full(len(places), known or chosen == "delete", dtype=np.bool_)
        else:
            means = _by_form(np.asarray(places, dtype=np.int64), [p for p in parts if len(p)], before)
        return [place for place, delete in zip(places, means.tolist(), strict=True) if delete and keys[place]]

    def part(self, records: Records, places: Sequence[int], connector: str) -> Part:
        """Deletes, without keys; only headers can state their positions and times.

        Raises Fault, and StreamFailed if positions must order the changes and a delete has none.
        """
        every = records.headers
        texts = [self._headers.texts(every[place]) if every is not None else {} for place in places]
        source = self._source(texts, connector)
        types = block_types(source)
        needed = set(source.fields)
        block = msgspec.defstruct("Block", [(role, wire, None) for role, wire in types.items()], gc=False)
        try:
            blocks: list[Any] = [block(**self._headers.values(found, types)) for found in texts]
            positions = source.positions(blocks)
        except (DecodeError, PositionError) as error:
            raise Fault(error.message, "position") from error
        if self._policy.versions.strategy == "source_position":
            lacking = [found for found in texts if not needed or not needed <= found.keys()]
            if lacking:
                raise missing_position(sorted(needed - lacking[0].keys()))
        stated = [_time(b, int(records.timestamps[place])) for b, place in zip(blocks, places, strict=True)]
        try:
            times = np.array(stated, dtype=np.int64)
        except OverflowError as error:
            raise Fault("source.ts_ms does not fit 64 bits", "position") from error
        n = len(places)
        return Part(
            source_index=np.asarray(places, dtype=np.int64),
            op=np.full(n, Op.DELETE, dtype=np.uint8),
            commit=positions.commit,
            inner=positions.inner,
            has_commit=positions.has_commit,
            source_ts=times,
            names=[b.name or "" for b in blocks],
            snapshot=np.zeros(n, dtype=np.bool_),
            after={},
            before={},
            has_before=np.zeros(n, dtype=np.bool_),
            key=None,
            connector=source.name,
            null_deletes=np.ones(n, dtype=np.bool_),
        )

    def _source(self, texts: Sequence[dict[str, bytes]], connector: str) -> Flattened:
        """The rows' source, else the one that the headers name."""
        try:
            if connector.partition(":")[0] == FLATTENED and connector != FLATTENED:
                return flattened(connector)
            named = next((found["connector"] for found in texts if "connector" in found), None)
            stated = self._headers.values({"connector": named}, {"connector": str})["connector"] if named else ""
            return flattened(flat_connector({role for found in texts for role in found}, stated))
        except DecodeError as error:
            raise Fault(error.message) from error


def _by_form(places: npt.NDArray[np.int64], parts: Sequence[Part], before: bool | None) -> npt.NDArray[np.bool_]:
    """The answer of the last row before each place; before the first row: ``before``, or that row's if it is None."""
    if not parts:
        return np.full(len(places), bool(before), dtype=np.bool_)
    index = np.concatenate([p.source_index for p in parts])
    none = (np.zeros(len(p), dtype=np.bool_) for p in parts)
    says = np.concatenate([no if p.null_deletes is None else p.null_deletes for p, no in zip(parts, none, strict=True)])
    order = np.argsort(index, kind="stable")
    index, says = index[order], says[order]
    said = np.concatenate([[bool(says[0]) if before is None else before], says])
    means: npt.NDArray[np.bool_] = said[np.searchsorted(index, places)]
    return means


def _time(block: Any, timestamp: int) -> int:
    """The source's time, else the connector's, else Kafka's."""
    for found in (block.ts_ms, block.event_ts_ms, timestamp):
        if found is not None:
            return max(int(found), 0)
    return 0
