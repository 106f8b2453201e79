"""Positions of MySQL, MariaDB and PostgreSQL, of blocks one by one and by column."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from ch_sink.errors import PositionError
from ch_sink.sources import Positions, source_for
from ch_sink.sources.logs import POSTGRES, PostgresBlock
from tests.support.fixtures import partitions, topics


def mysql(**fields: Any) -> Positions:
    source = source_for("mysql")
    return source.positions([source.wire(**fields)])


def postgres(**fields: Any) -> Positions:
    source = source_for("postgresql")
    return source.positions([source.wire(**fields)])


@pytest.mark.parametrize(
    ("file", "pos", "row", "commit", "inner", "has"),
    [
        ("binlog.000001", 7539, 0, (1 << 40) | 7539, (7539, 0), True),
        ("mysql-bin.changelog.16777215", 2**40 - 1, 3, 2**64 - 1, (2**40 - 1, 3), True),
        ("", 0, 0, 0, (0, 0), False),
        ("", 55, 0, 0, (55, 0), False),
        (None, None, None, 0, (0, 0), False),
        ("b.1", -4, None, 1 << 40, (0, 0), True),
    ],
)
def test_mysql_positions(
    file: str | None, pos: int | None, row: int | None, commit: int, inner: tuple[int, int], has: bool
) -> None:
    found = mysql(file=file, pos=pos, row=row)
    assert found.commit.tolist() == [[0, commit]]
    assert found.inner.tolist() == [list(inner)]
    assert found.has_commit.tolist() == [has]


@pytest.mark.parametrize(
    ("sequence", "lsn", "commit", "inner", "has"),
    [
        ('["24023128","24023200"]', 24023200, 24023128, 24023200, True),
        ('[null,"27099352"]', 27099352, 27099352, 27099352, False),
        (None, -9223372036854775808, 0, 0, False),
        ('["18446744073709551615","1"]', None, 2**64 - 1, 0, True),
        ("[12, 13]", 13, 12, 13, True),
        ("[]", 1, 1, 1, False),
    ],
)
def test_postgres_positions(sequence: str | None, lsn: int | None, commit: int, inner: int, has: bool) -> None:
    found = postgres(sequence=sequence, lsn=lsn)
    assert found.commit.tolist() == [[0, commit]]
    assert found.inner.tolist() == [[0, inner]]
    assert found.has_commit.tolist() == [has]


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("file", lambda: mysql(file="binlog.16777216", pos=1)),
        ("file", lambda: mysql(file="binlog", pos=1)),
        ("pos", lambda: mysql(file="b.1", pos=1 << 40)),
        ("row", lambda: mysql(file="b.1", pos=1, row=1 << 33)),
        ("sequence", lambda: postgres(sequence='["x","1"]')),
        ("sequence", lambda: postgres(sequence='["18446744073709551616","1"]')),
        ("lsn", lambda: postgres(lsn=1 << 64)),
    ],
)
def test_what_does_not_fit_names_the_field(field: str, make: Any) -> None:
    with pytest.raises(PositionError, match=field):
        make()


@pytest.mark.parametrize(
    ("stream", "connector"), [("mariadb-busy-json_plain", "mariadb"), ("postgres-busy-json_plain", "postgresql")]
)
def test_recorded_commit_positions_go_back_only_at_the_two_kills(stream: str, connector: str) -> None:
    """The connector's worker was killed twice: each partition shows at most two steps back."""
    import msgspec

    source = source_for(connector)
    event = msgspec.defstruct("Event", [("source", source.wire)])
    for topic in topics(stream):
        if topic.endswith(".acct"):
            for records in partitions(stream, topic).values():
                blocks = [msgspec.json.decode(v, type=event).source for v in records.values if v]
                found = source.positions(blocks)
                commits = [c for c, has in zip(found.commit[:, 1].tolist(), found.has_commit, strict=True) if has]
                assert 1 <= sum(b < a for a, b in pairwise(commits)) <= 2


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
