"""Texts one behind the other, as compiled code and numpy read them."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ch_sink.decode.native.library import address, joiner

__all__ = ["Joined", "joined"]


class Joined(list[bytes]):
    """Texts that are joined once for all who ask. Raises TypeError then, if one is no bytes object."""

    @cached_property
    def _together(self) -> tuple[bytes, npt.NDArray[np.int64]]:
        join = joiner()
        if join is None:
            return b"".join(self), np.cumsum(np.fromiter(map(len, self), dtype=np.int64, count=len(self)))
        ends = np.empty(len(self), dtype=np.int64)
        return join(self, address(ends)), ends

    @property
    def data(self) -> bytes:
        """All texts, one behind the other."""
        return self._together[0]

    @property
    def ends(self) -> npt.NDArray[np.int64]:
        """Where each ends."""
        return self._together[1]

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """How long each is."""
        return np.diff(self.ends, prepend=0)


def joined(texts: Sequence[bytes]) -> Joined:
    """The texts, which are not copied if they are joined already."""
    return texts if isinstance(texts, Joined) else Joined(texts)
