"""Null values: deletes, where the events are flattened and nothing else tells of a delete; else set aside."""

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
    """Decides what the null values of a topic mean, and makes deletes of those that are.

    With ``tombstones: auto`` the last row before a null value decides. That form is remembered between chunks.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._headers = HeaderFields(policy.events.headers_prefix)
        self._delete: bool | None = None
        self.undecided = False
        """The last chunk had null values, and no row that was seen tells what they mean."""

    def deletes(
        self, places: Sequence[int], keys: Sequence[bytes | None], parts: Sequence[Part], *, known: bool
    ) -> list[int]:
        """Those of the null values (by place in the chunk) that delete a row. Null keys delete none.

        ``known``: they are records that waited, which only deletes do.
        """
        means: npt.NDArray[np.bool_] | None = None
        self.undecided = False
        if known or self._policy.events.tombstones != "auto":
            every = known or self._policy.events.tombstones == "delete"
            means = np.full(len(places), every, dtype=np.bool_)
        elif (told := [p for p in parts if len(p)]) or self._delete is not None:
            means = self._by_form(np.asarray(places, dtype=np.int64), told)
        if means is None:
            self.undecided = bool(places)
            return []
        return [place for place, delete in zip(places, means.tolist(), strict=True) if delete and keys[place]]

    def _by_form(self, places: npt.NDArray[np.int64], parts: Sequence[Part]) -> npt.NDArray[np.bool_]:
        """What the last row before each place says; before the first row, what was remembered, else that row."""
        if not parts:
            return np.full(len(places), bool(self._delete), dtype=np.bool_)
        first = self._delete
        index, says = self._forms(parts)
        before = np.concatenate([[bool(says[0]) if first is None else first], says])
        means: npt.NDArray[np.bool_] = before[np.searchsorted(index, places)]
        return means

    def saw(self, parts: Sequence[Part]) -> None:
        """Remember the form of a chunk without null values."""
        self.undecided = False
        if told := [p for p in parts if len(p)]:
            self._forms(told)

    def _forms(self, parts: Sequence[Part]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """Places of the rows in Kafka order, and what each says of null values behind it. The last is remembered."""
        index = np.concatenate([p.source_index for p in parts])
        says = np.concatenate([np.full(len(p), p.tombstones_delete, dtype=np.bool_) for p in parts])
        order = np.argsort(index, kind="stable")
        index, says = index[order], says[order]
        self._delete = bool(says[-1])
        return index, says

    def part(self, records: Records, places: Sequence[int], connector: str) -> Part:
        """Deletes, without keys; their positions and times come from headers, if anything tells them.

        Raises Fault, and StreamFailed where positions are to order the changes and a delete has none.
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
        told = [_time(b, int(records.timestamps[place])) for b, place in zip(blocks, places, strict=True)]
        try:
            times = np.array(told, dtype=np.int64)
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
            tombstones_delete=True,
        )

    def _source(self, texts: Sequence[dict[str, bytes]], connector: str) -> Flattened:
        """The rows' source, else the one that the headers tell."""
        try:
            if connector.partition(":")[0] == FLATTENED and connector != FLATTENED:
                return flattened(connector)
            named = next((found["connector"] for found in texts if "connector" in found), None)
            told = self._headers.values({"connector": named}, {"connector": str})["connector"] if named else ""
            return flattened(flat_connector({role for found in texts for role in found}, told))
        except DecodeError as error:
            raise Fault(error.message) from error


def _time(block: Any, timestamp: int) -> int:
    """The source's time, else the connector's, else Kafka's."""
    for found in (block.ts_ms, block.event_ts_ms, timestamp):
        if found is not None:
            return max(int(found), 0)
    return 0
