"""Chunks: nothing lost, fixed cuts, bounded bytes, alike on every attempt."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ch_sink.model.change import Records
from ch_sink.model.values import enclosed
from ch_sink.pipeline.chunks import cut


def records(offsets, sizes):
    n = len(offsets)
    return Records(
        "t",
        0,
        np.array(offsets, dtype=np.int64),
        np.zeros(n, dtype=np.int64),
        [b"k"] * n,
        [b"v" * s for s in sizes],
        [[("o", str(o).encode())] for o in offsets],
    )


def with_schemas(whole, heads, kept_once):
    """The records as JSON with these schemas' texts in turn; each text with its values, or kept once."""
    values = [heads[i % len(heads)] + value + b"}" for i, value in enumerate(whole.values)]
    return replace(whole, values=enclosed(values) if kept_once else values)


def slices(whole, widths):
    at, out = 0, []
    for width in widths:
        out.append(whole.take(np.arange(at, min(at + width, len(whole)))))
        at += width
    out.append(whole.take(np.arange(min(at, len(whole)), len(whole))))
    return out


ranges = st.tuples(
    st.integers(0, 50), st.lists(st.tuples(st.integers(1, 5), st.integers(0, 30)), max_size=60), st.integers(0, 7)
)


@given(spec=ranges, widths=st.lists(st.integers(0, 9), max_size=12), window=st.integers(1, 20), cap=st.integers(1, 300))
def test_chunks_cover_the_range_without_gap_and_keep_every_record(spec, widths, window, cap):
    start, steps, tail = spec
    offsets = list(start + np.cumsum([s for s, _ in steps]) - 1) if steps else []
    end = (offsets[-1] + 1 if offsets else start) + tail
    whole = records(offsets, [size for _, size in steps])
    chunks = list(cut(slices(whole, widths), start, end, chunk_offsets=window, chunk_bytes=cap))
    edges = [(c.first, c.end) for c in chunks]
    assert [o for c in chunks for o in c.records.offsets] == offsets
    assert [h[0][1] for c in chunks for h in (c.records.headers or [])] == [str(o).encode() for o in offsets]
    assert all(c.first <= o < c.end for c in chunks for o in c.records.offsets)
    assert [e for _, e in edges[:-1]] == [f for f, _ in edges[1:]]
    if start < end:
        assert (edges[0][0], edges[-1][1]) == (start, end)
    for chunk in chunks:
        assert chunk.end - chunk.first <= window
        assert chunk.end % window == 0 or chunk.end == end or chunk.first // window == chunk.end // window


@given(
    spec=ranges,
    one=st.lists(st.integers(0, 9), max_size=12),
    two=st.lists(st.integers(0, 9), max_size=12),
    window=st.integers(1, 20),
    cap=st.integers(1, 300),
)
def test_the_cuts_do_not_depend_on_how_the_consumer_slices(spec, one, two, window, cap):
    start, steps, tail = spec
    offsets = list(start + np.cumsum([s for s, _ in steps]) - 1) if steps else []
    end = (offsets[-1] + 1 if offsets else start) + tail
    whole = records(offsets, [size for _, size in steps])
    found = [
        [(c.first, c.end) for c in cut(slices(whole, widths), start, end, chunk_offsets=window, chunk_bytes=cap)]
        for widths in (one, two)
    ]
    assert found[0] == found[1]


@given(
    spec=ranges,
    one=st.lists(st.integers(0, 9), max_size=12),
    two=st.lists(st.integers(0, 9), max_size=12),
    cap=st.integers(1, 600),
    heads=st.lists(st.sampled_from([b'{"schema":1,"payload":', b'{"schema":22,"payload":', b'{"a":']), min_size=1),
)
def test_the_cuts_do_not_depend_on_how_a_schema_is_kept(spec, one, two, cap, heads):
    start, steps, tail = spec
    offsets = list(start + np.cumsum([s for s, _ in steps]) - 1) if steps else []
    end = (offsets[-1] + 1 if offsets else start) + tail
    plain = records(offsets, [size for _, size in steps])
    found = []
    for widths, kept_once in ((one, False), (two, True)):
        whole = with_schemas(plain, heads, kept_once)
        chunks = list(cut(slices(whole, widths), start, end, chunk_offsets=16, chunk_bytes=cap))
        found.append([(c.first, c.end, list(c.records.values)) for c in chunks])
    assert found[0] == found[1]
    assert [value for _, _, values in found[0] for value in values] == list(whole.values)


def test_a_schema_that_values_repeat_counts_once():
    head = b'{"schema":%s,"payload":' % (b"1" * 1000)
    one, two = (
        with_schemas(records(range(100), [10] * 100), heads, False)
        for heads in ([head], [head, head.replace(b"1", b"2")])
    )
    cuts = [
        [c.end for c in cut(slices(whole, [7, 7, 60]), 0, 100, chunk_offsets=100, chunk_bytes=4000)]
        for whole in (one, two)
    ]
    assert cuts[0] == [100]
    assert len(cuts[1]) > 20


def test_a_window_over_the_cap_is_cut_at_halves_and_quarters():
    whole = records(range(100), [10] * 100)
    chunks = list(cut([whole], 0, 100, chunk_offsets=100, chunk_bytes=600))
    assert [(c.first, c.end) for c in chunks] == [(0, 50), (50, 100)]


def test_an_empty_range_of_offsets_is_still_a_chunk():
    assert [
        (c.first, c.end, len(c.records)) for c in cut([records([], [])], 3, 9, chunk_offsets=100, chunk_bytes=1)
    ] in (
        [(3, 9, 0)],
        [],
    )
