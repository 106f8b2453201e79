"""What a stream of a random sequence is made of besides its ports."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ch_sink.table.model import TargetTable
from tests.support.machine_model import Rows, Shop, full
from tests.support.stream import Altered

__all__ = ["Copies", "Known", "SourceRows", "Wrong", "differing"]


class Wrong(AssertionError):
    """The table, or what a command says of it, is not what the model says."""


@dataclass
class SourceRows:
    """The source as commands read it."""

    shop: Shop
    proves: bool = True

    def position(self) -> int:
        return self.shop.pos + 5 if self.shop.pg else self.shop.file << 40 | (self.shop.pos + 5)

    def settled(self, patience: float) -> int:
        return self.position() if self.proves else 0

    def columns(self) -> dict[str, str]:
        return {"id": "bigint", "v": "varchar(20)", "n": "bigint"}

    def rows(self, names: Sequence[str], size: int) -> Iterator[list[tuple[Any, ...]]]:
        rows = [full(k, v) for k, v in sorted(self.shop.rows.items())]
        yield [tuple(None if r[n] is None else str(r[n]) for n in names) for r in rows]

    def close(self) -> None:
        pass


class Known(Altered):
    """The target table, looked at only when a step has altered it."""

    def detect(self) -> TargetTable:
        return self.table


@dataclass(frozen=True)
class Copies:
    """A backup of ClickHouse at one moment."""

    topic_id: str
    book: Any
    over: dict[int, tuple[int, str | None, bool]]
    loose: set[int]
    narrow: bool
    doubtful: bool
    loads: int
    applied: dict[int, int]
    clean: bool


def differing(want: Rows, got: Rows, but: set[int]) -> dict[int, tuple[Any, Any]]:
    """Key → what is right, what was found."""
    return {
        k: (want.get(k, "none"), got.get(k, "none"))
        for k in sorted({*want, *got} - but)
        if (k in want, want.get(k)) != (k in got, got.get(k))
    }
