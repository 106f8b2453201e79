"""Numbering of keys: equal rows get equal numbers, for every type, and values move by row number."""

import numpy as np
import pyarrow as pa
import pytest

from ch_sink.merge.resolved import Pool, factorize


@pytest.mark.parametrize(
    ("column", "want"),
    [
        (pa.array([3, 1, 3, 2]), [0, 1, 0, 2]),
        (pa.array([2**63 - 1, -(2**63), 2**63 - 1]), [0, 1, 0]),
        (pa.array([2**64 - 1, 0, 2**64 - 1], pa.uint64()), [0, 1, 0]),
        (pa.array([None, 0, None], pa.int64()), [0, 1, 0]),
        (pa.array([b"a", b"", None, b"a"], pa.binary()), [0, 1, 2, 0]),
        (pa.array(["é", "e\u0301", "é"]), [0, 1, 0]),
        (pa.array([float("nan"), 1.0, float("nan")]), [0, 1, 0]),
        (pa.array([b"0" * 16, b"1" * 16, b"0" * 16], pa.binary(16)), [0, 1, 0]),
        (pa.array([[1, 2], [1], [1, 2]]), [0, 1, 0]),
        (pa.chunked_array([[1, 2], [1]]), [0, 1, 0]),
    ],
    ids=str,
)
def test_equal_values_share_a_number(column: pa.Array, want: list[int]) -> None:
    found = factorize(pa.table({"k": column})).codes
    first: dict[int, int] = {}
    assert [first.setdefault(int(code), len(first)) for code in found] == want


def test_keys_of_several_columns_are_whole() -> None:
    """(1, 23) is not (12, 3), and many wide columns do not overflow."""
    keys = pa.table({"a": ["1", "12", "1"], "b": ["23", "3", "23"]})
    assert factorize(keys).codes.tolist() == [0, 1, 0]
    numbers = np.arange(1000) * (2**50 + 7)
    wide = pa.table({f"c{i}": numbers[(np.arange(1000) * (i + 3)) % 1000] for i in range(9)})
    assert factorize(wide).count == 1000


def test_the_first_row_of_each_key() -> None:
    coded = factorize(pa.table({"k": ["x", "y", "x", "z", "y"]}))
    assert sorted(coded.first().tolist()) == [0, 1, 3]
    assert coded.codes[coded.first()].tolist() == [0, 1, 2]


def test_no_rows_have_no_keys() -> None:
    coded = factorize(pa.table({"k": pa.array([], pa.string())}))
    assert (len(coded.codes), coded.count) == (0, 0)


def test_a_pool_gives_rows_of_all_segments_and_null_for_none() -> None:
    pool = Pool(pa.table({"v": [10, 11]}))
    start = pool.add(pa.table({"v": pa.array([20, 21], pa.int32())}))
    assert start == 2
    assert pool.take("v", np.array([3, -1, 0, 0])).to_pylist() == [21, None, 10, 10]
    assert pool.take("v", np.array([0, 1])).to_pylist() == [10, 11]
    assert pool.take("v", np.array([], dtype=np.int64)).to_pylist() == []
    third = pool.add(pa.table({"v": [30]}))
    assert pool.take("v", np.array([third, 1])).to_pylist() == [30, 11]
