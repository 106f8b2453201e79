"""PostgreSQL's positions of source blocks that come by column are those of the same blocks one by one."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from ch_sink.errors import PositionError
from ch_sink.sources.base import Positions
from ch_sink.sources.logs import POSTGRES, PostgresBlock

USUAL = ['["24023128","24023200"]', '["24023128",null]', '["0","1"]', '["18446744073709551615","1"]', None]
ODD = ['[null,"24023200"]', '[24023128,"1"]', '[ "5" , "6" ]', '["-5","6"]', '["5"]', "[]", "", '["007","8"]']
WRONG = ['["18446744073709551616","1"]', '["1e3","1"]', '["+5","6"]', '["5 ","6"]', "x", '["","6"]', '["٣","6"]']


@dataclass
class ByColumn:
    """Source blocks by field."""

    blocks: list[PostgresBlock]

    def __len__(self) -> int:
        return len(self.blocks)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.blocks)

    def values(self, name: str) -> list[Any]:
        return [getattr(block, name) for block in self.blocks]

    def numbers(self, name: str) -> npt.NDArray[np.int64] | None:
        return np.array([value or 0 for value in self.values(name)], dtype=np.int64)

    def texts(self, name: str) -> pa.Array:
        return pa.array(self.values(name), pa.string())


def shown(positions: Positions) -> list[list[Any]]:
    return [positions.commit.tolist(), positions.inner.tolist(), positions.has_commit.tolist()]


def outcome(blocks: Any) -> list[list[Any]] | str:
    try:
        return shown(POSTGRES.positions(blocks))
    except PositionError as error:
        return str(error)


def expect_alike(sequences: list[str | None]) -> None:
    blocks = [PostgresBlock(24_023_100 + at, text) for at, text in enumerate(sequences)]
    assert outcome(ByColumn(blocks)) == outcome(blocks)


@pytest.mark.parametrize("text", [*USUAL, *ODD, *WRONG])
def test_each_form_alone_and_among_usual_ones(text: str | None) -> None:
    expect_alike([text])
    expect_alike([*USUAL, text, *USUAL])


def test_mixtures() -> None:
    rnd = Random(4)
    for _ in range(300):
        some = USUAL + ODD * (rnd.random() < 0.5) + WRONG * (rnd.random() < 0.2)
        expect_alike(rnd.choices(some, k=rnd.randint(0, 9)))
