"""Version words against the bit layout written in plain Python integers."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ch_sink.errors import PositionError, StreamFailed, TableError
from ch_sink.model.policy import VersionPolicy
from ch_sink.order import strategy_for
from ch_sink.order.version import layout_for, to_int


def words_of(*numbers: int) -> np.ndarray:
    return np.array([[n >> 64, n & (2**64 - 1)] for n in numbers], dtype=np.uint64)


def pack(layout, epoch, commit, offset, half=1, ts=0):
    return layout.pack(np.array([epoch]), words_of(commit), np.array([offset]), np.array([ts]), half)


@given(
    epoch=st.integers(0, 2**15 - 1),
    commit=st.integers(0, 2**80 - 1),
    offset=st.integers(0, 2**62),
    half=st.integers(0, 1),
)
def test_wide_versions_hold_epoch_position_offset_and_half(epoch, commit, offset, half):
    words = pack(layout_for("UInt128"), epoch, commit, offset, half)
    expected = (epoch << 112) | (commit << 32) | ((offset & (2**31 - 1)) << 1) | half
    assert to_int(words, 0) == expected


@given(
    a=st.tuples(st.integers(0, 100), st.integers(0, 2**80 - 1), st.integers(0, 2**31 - 1), st.integers(0, 1)),
    b=st.tuples(st.integers(0, 100), st.integers(0, 2**80 - 1), st.integers(0, 2**31 - 1), st.integers(0, 1)),
)
def test_versions_order_as_epoch_position_offset_half(a, b):
    layout = layout_for("UInt128")
    assert (to_int(pack(layout, *a), 0) < to_int(pack(layout, *b), 0)) == (a < b)


@given(epoch=st.integers(0, 127), offset=st.integers(0, 2**54), half=st.integers(0, 1))
def test_narrow_versions_hold_epoch_offset_and_half(epoch, offset, half):
    words = pack(layout_for("UInt64"), epoch, 12345, offset, half)
    assert to_int(words, 0) == (epoch << 56) | (offset << 1) | half


@pytest.mark.parametrize("kind", ["UInt128", "Int128", "UInt256", "UInt64", "Int64"])
def test_versions_read_back_from_the_column_are_the_same(kind):
    layout = layout_for(kind)
    numbers = [0, 1, 2**62 + 5] + ([2**64, 2**126 + 7] if layout.kind == "wide" else [])
    words = words_of(*numbers)
    column = layout.to_arrow(words)
    assert column.type == layout.arrow
    assert (layout.from_arrow(column) == words).all()
    assert (layout.from_arrow(pa.chunked_array([column.slice(1)])) == words[1:]).all()


def test_wide_columns_are_little_endian():
    layout = layout_for("UInt128")
    value = 0x0102030405060708090A0B0C0D0E0F10
    assert layout.to_arrow(words_of(value))[0].as_py() == value.to_bytes(16, "little")


def test_time_versions_are_source_time_in_the_columns_unit():
    layout = layout_for("DateTime64(6)")
    words = pack(layout, 0, 0, 7, ts=1_700_000_000_123)
    assert layout.to_arrow(words).cast(pa.int64())[0].as_py() == 1_700_000_000_123_000


@given(st.sampled_from(["UInt128", "Int128", "UInt256", "UInt64", "Int64"]), st.data())
def test_the_epoch_behind_that_of_a_version_is_above_it_or_does_not_fit(kind, data):
    """Whoever wrote the version: a stream that begins there has every later version above it."""
    bits = {"UInt64": 64, "Int64": 63, "Int128": 127}.get(kind, 128)
    stored, layout = data.draw(st.integers(0, 2**bits - 1)), layout_for(kind)
    epoch = layout.epoch_of(stored) + 1
    number, commit = data.draw(st.integers(0, 2**54 - 1)), data.draw(st.integers(0, 2**80 - 1))
    if epoch > layout.epochs:
        with pytest.raises(StreamFailed, match=f"epoch {epoch} does not fit the version column"):
            pack(layout, epoch, commit, number)
    else:
        assert stored < to_int(pack(layout, epoch, commit, number, half=0), 0) < 2**bits


@pytest.mark.parametrize(
    ("kind", "epochs"), [("UInt128", 0x7FFF), ("Int128", 0x7FFF), ("UInt64", 0xFF), ("Int64", 0x7F)]
)
def test_a_column_holds_all_epochs_of_its_layout(kind, epochs):
    assert layout_for(kind).epochs == epochs


def test_times_have_no_epoch():
    assert layout_for("DateTime64(3)").epoch_of(1_732_500_000_000) is None


def test_a_position_beyond_80_bits_is_refused():
    with pytest.raises(PositionError):
        pack(layout_for("UInt128"), 0, 2**80, 0)


@pytest.mark.parametrize("kind", ["UInt8", "String", "Date", "Float64"])
def test_types_that_hold_no_order_are_refused_with_a_remedy(kind):
    with pytest.raises(TableError) as raised:
        layout_for(kind)
    assert kind in str(raised.value)
    assert "UInt128" in (raised.value.hint or "")


@pytest.mark.parametrize(
    ("column", "strategy"),
    [
        ("UInt64", "source_position"),
        ("UInt64", "source_time"),
        ("DateTime64(3)", "kafka_offset"),
        ("UInt128", "source_time"),
    ],
)
def test_a_strategy_that_the_version_column_cannot_hold_is_refused(column, strategy):
    """A UInt128 column would be filled by Kafka's order under the name of source time."""
    with pytest.raises(StreamFailed, match=f"{strategy} does not fit"):
        strategy_for(VersionPolicy(strategy=strategy), "source_position", layout_for(column))
