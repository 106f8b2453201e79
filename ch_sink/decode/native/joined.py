"""Texts one behind the other, as compiled code and numpy read them."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt

__all__ = ["Joined", "joined"]


class Joined(list[bytes]):
    """Texts that are joined once for all who ask."""

    @cached_property
    def data(self) -> bytes:
        """All texts, one behind the other."""
        return b"".join(self)

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """How long each is."""
        return np.fromiter(map(len, self), dtype=np.int64, count=len(self))

    @cached_property
    def ends(self) -> npt.NDArray[np.int64]:
        """Where each ends."""
        return np.cumsum(self.lengths)


def joined(texts: Sequence[bytes]) -> Joined:
    """The texts, which are not copied if they are joined already."""
    return texts if isinstance(texts, Joined) else Joined(texts)
