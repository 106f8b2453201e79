"""Re-delivery, regress, epochs: streams written by hand, and drawn ones against a model of a few lines."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ch_sink.errors import StreamFailed
from ch_sink.model.change import ChangeBatch, Records
from ch_sink.model.policy import VersionPolicy
from ch_sink.order import Earlier, Rules, SourceState, State, layout_for, sequence
from ch_sink.order.version import to_int

WIDE = layout_for("UInt128")


def events(*rows, start=0, has=None):
    """Events from (commit, key) or (commit, key, inner, op)."""
    full = [(*r, 0, "u")[:4] if len(r) == 2 else r for r in rows]
    n = len(full)
    words = np.array([[c >> 64, c & (2**64 - 1)] for c, _, _, _ in full], dtype=np.uint64).reshape(n, 2)
    batch = ChangeBatch(
        source_index=np.arange(n),
        offset=np.arange(start, start + n),
        op=np.array([ord(o) for _, _, _, o in full], dtype=np.uint8),
        commit=words,
        inner=np.array([[0, i] for _, _, i, _ in full], dtype=np.uint64).reshape(n, 2),
        has_commit=np.ones(n, dtype=bool) if has is None else np.array(has),
        source_ts=np.zeros(n, dtype=np.int64),
        source_name=["s"],
        source_code=np.zeros(n, dtype=np.int16),
        half=np.zeros(n, dtype=np.uint8),
        key=pa.table({"k": [k for _, k, _, _ in full]}),
        after=pa.table({"k": [k for _, k, _, _ in full]}),
        before=None,
        has_before=np.zeros(n, dtype=bool),
    )
    records = Records(
        "t", 0, batch.offset, np.zeros(n, dtype=np.int64), [str(k).encode() for _, k, _, _ in full], [b"x"] * n
    )
    return batch, records


class Past:
    """History over a list of earlier events."""

    def __init__(self, *rows):
        self.batch, self.records = events(*rows)

    def before(self, offset, limit):
        keep = np.flatnonzero(self.batch.offset < offset)[-limit:]
        self.asked = (offset, limit)
        self.kept = keep
        return self.records.take(keep)

    def decode(self, records):
        rows = [
            (
                (int(self.batch.commit[i, 0]) << 64) | int(self.batch.commit[i, 1]),
                int(self.records.keys[i]),
                int(self.batch.inner[i, 1]),
                chr(self.batch.op[i]),
            )
            for i in self.kept
        ]
        return events(*rows)[0]


def run(batch, records, state=None, past=None, failed=None, **more):
    more.setdefault("strategy", "source_position")
    return sequence(
        batch,
        records,
        state or State(),
        Rules(WIDE, VersionPolicy(), **more),
        Earlier(past, past.decode if past else None, failed),
    )


def test_rising_positions_keep_everything_in_epoch_zero():
    out = run(*events((1, 1), (1, 2), (5, 1)))
    assert out.keep.all()
    assert [to_int(out.version, i) >> 112 for i in range(3)] == [0, 0, 0]
    assert out.state.of("s") == SourceState(commit=5)


def test_a_proved_redelivery_is_skipped_until_the_highest_position():
    past = Past((1, 1), (2, 2), (3, 3))
    state = State({"s": SourceState(commit=3)})
    batch, records = events((1, 1), (2, 2), (3, 3), (4, 4), start=3)
    out = run(batch, records, state, past)
    assert out.keep.tolist() == [False, False, True, True]  # at the highest position it is applied again
    assert [s.kind for s in out.steps] == ["redelivery"]
    assert out.skipped["redelivered"] == 2
    assert out.state.of("s") == SourceState(commit=4)


def test_the_proof_may_stand_in_the_same_chunk():
    out = run(*events((1, 1), (2, 2), (3, 3), (1, 1), (2, 2), (4, 4)))
    assert out.keep.tolist() == [True, True, True, False, False, True]


def test_an_unknown_record_below_the_highest_position_raises_the_epoch():
    past = Past((100, 1))
    batch, records = events((7, 1), (8, 2), start=1)
    out = run(batch, records, State({"s": SourceState(commit=100)}), past)
    assert out.keep.all()
    assert [to_int(out.version, i) >> 112 for i in range(2)] == [1, 1]
    assert [s.kind for s in out.steps] == ["regress"]
    assert out.state.of("s") == SourceState(epoch=1, commit=8)


def test_another_change_at_the_same_position_is_no_proof():
    past = Past((1, 1, 5, "u"), (9, 1))
    batch, records = events((1, 1, 6, "u"), start=2)
    out = run(batch, records, State({"s": SourceState(commit=9)}), past)
    assert out.keep.all()
    assert out.state.of("s").epoch == 1


def test_a_redelivered_truncate_is_known_also_where_no_record_beside_it_has_a_key():
    past = Past((1, 1), (2, 0, 9, "t"), (3, 3))
    past.records.keys[1] = None
    past.decode = lambda records: past.batch  # a chunk with keys
    batch, records = events((2, 0, 9, "t"), start=3)
    records.keys[0] = None
    batch.key = None
    out = run(batch, records, State({"s": SourceState(commit=3)}), past)
    assert out.keep.tolist() == [False]
    assert out.state.of("s").epoch == 0


def test_a_redelivery_that_goes_on_in_the_next_chunk_is_still_known():
    past = Past((1, 1), (2, 2), (3, 3), (1, 1))
    state = State({"s": SourceState(commit=3, redelivering=True)})
    batch, records = events((2, 2), (5, 5), start=4)
    out = run(batch, records, state, past)
    assert out.keep.tolist() == [False, True]
    assert not out.state.of("s").redelivering


def test_append_mode_drops_a_repeat_at_the_highest_position():
    past = Past((1, 1), (2, 2))
    batch, records = events((2, 2), (2, 3), start=2)
    out = run(batch, records, State({"s": SourceState(commit=2)}), past, counts=True)
    assert out.keep.tolist() == [False, True]


def counted(*rows, start=0, state=None, past=None, key=None, time=0, **more):
    """Rows (commit, value, inner, op, run) into a table that counts changes; without keys, or all of one key.

    ``time``: that of the rows; those of the past have time 0.
    """

    def made(rows, start):
        batch, records = events(*[row[:4] for row in rows], start=start)
        records.headers = [row[4] and [("__debezium.context.runId", row[4])] for row in rows]
        records.keys = [key] * len(rows)
        batch.key = None if key is None else pa.table({"k": [1] * len(rows)})
        return batch, records

    history = Past(*[row[:4] for row in past or ()])
    history.records = made(past or (), 0)[1]
    history.decode = lambda records: made(past or (), 0)[0]
    state = State({"s": SourceState(*state)} if state else {}, alone=True)
    batch, records = made(rows, start)
    batch.source_ts[:] = time
    return run(batch, records, state, history, counts=True, **more)


def test_equal_rows_of_one_copy_are_counted_and_those_of_another_run_are_not():
    """PostgreSQL inserts them at one position; a restarted connector sends the last of what it sent before."""
    first = [(5, 1, 9, "c", b"a")]
    copy = [(7, value, 20, "c", b"a") for value in (1, 1, 2, 1)]
    out = counted(*first, *copy, unique_inner=True)
    assert out.keep.all()
    again = [(*row[:4], b"b") for row in copy]
    rest = counted(*again, (8, 1, 30, "c", b"b"), start=5, past=[*first, *copy], state=(0, 7, 20), unique_inner=True)
    assert rest.keep.tolist() == [False] * 4 + [True]
    # The first run was killed after two of the four.
    cut = counted(*again, start=3, past=[*first, *copy[:2]], state=(0, 7, 20), unique_inner=True)
    assert cut.keep.tolist() == [False, False, True, True]
    # Or sends more before it as well.
    more = counted((5, 1, 9, "c", b"b"), *again, start=3, past=[*first, *copy[:2]], state=(0, 7, 20), unique_inner=True)
    assert more.keep.tolist() == [False, False, False, True, True]


def test_without_keys_and_runs_an_equal_record_stops_the_stream_unless_positions_stepped_back():
    row, other = (7, 1, 20, "c", None), (7, 2, 21, "c", None)
    with pytest.raises(StreamFailed, match=r"offset 1 equals that at 0.*COPY.*counts its rows"):
        counted(row, row, unique_inner=True)
    assert counted(row, other, row, other, unique_inner=True).keep.tolist() == [True, True, False, False]
    assert counted((6, 1, 9, "c", None), row, (6, 1, 9, "c", None), row).keep.tolist() == [True, True, False, False]


def test_a_history_keeps_changes_of_one_position_that_differ_or_are_of_one_run():
    """All changes of a compressed transaction share their position."""
    rows = [(7, value, 20, "u", None) for value in (1, 2, 3)]
    assert counted(*rows, key=b"1").keep.all()
    back = [(7, value, 20, "u", b"a") for value in (1, 2, 1)]
    assert counted(*back, key=b"1").keep.all()
    resumed = [
        (6, 9, 1, "c", b"a"),
        (7, 8, 20, "c", b"a"),
        (6, 9, 1, "c", b"b"),
        (7, 8, 20, "c", b"b"),
        *[(*r[:4], b"b") for r in back],
    ]
    assert counted(*resumed, key=b"1").keep.tolist() == [True, True, False, False, True, True, True]
    assert counted(*rows, rows[2], key=b"1").keep.tolist() == [True, True, True, False]
    assert counted(*back, (7, 2, 20, "u", b"b"), key=b"1").keep.tolist() == [True, True, True, False]


@pytest.mark.parametrize("key", [None, b"1"])
def test_a_change_that_is_read_again_at_another_time_is_counted_once_where_inner_positions_are_unique(key):
    """Db2 states the time of reading."""
    rows = [(16, 1, 16, "c", b"a"), (32, 2, 32, "u", b"a"), (48, 3, 48, "u", b"a")]
    again = [*[(*row[:4], b"b") for row in rows[1:]], (64, 4, 64, "c", b"b")]
    for first in (0, 1):  # the last one alone repeats the highest position
        out = counted(*again[first:], start=3, past=rows, state=(0, 48, 48), key=key, time=90_000, unique_inner=True)
        assert out.keep.tolist() == [False] * (2 - first) + [True]
        assert out.state.epoch == 0
    batch, records = events(*[row[:4] for row in rows[1:]], start=3)
    batch.source_ts[:] = 90_000
    kept = run(batch, records, State({"s": SourceState(0, 48, 48)}), Past(*[r[:4] for r in rows]), unique_inner=True)
    assert (kept.keep.all(), kept.state.epoch) == (True, 1)  # perhaps a change of a restored database


def test_a_table_without_a_key_does_not_go_on_at_lower_positions():
    """The promoted server has the last transactions under its own positions, and they are sent again."""
    rows = [(500, 1, 0, "c", None), (600, 2, 0, "c", None), (320, 2, 0, "c", None)]
    with pytest.raises(StreamFailed, match=r"at offset 2 the positions of 's' step back from 600 to 320.*twice"):
        counted(*rows)
    assert counted(*rows, key=b"1").state.of("s").epoch == 1
    emptied = counted(*rows[:2], (320, 0, 0, "t", None), (330, 2, 0, "c", None))
    assert (emptied.state.of("s").epoch, emptied.keep.tolist()) == (1, [True] * 4)


def test_a_repeat_inside_the_highest_transaction_is_skipped_where_inner_positions_are_unique():
    past = Past((5, 1, 10, "u"), (5, 2, 20, "d"))
    state = State({"s": SourceState(commit=5, inner=20)})
    batch, records = events((5, 1, 10, "u"), (5, 2, 20, "d"), (5, 3, 30, "u"), start=2)
    out = run(batch, records, state, past, unique_inner=True)
    assert out.keep.tolist() == [False, False, True]
    assert out.state.of("s").inner == 30
    assert run(batch, records, state, past).keep.all()  # without unique positions two changes may look alike


def test_a_repeat_that_states_no_commit_position_is_skipped():
    past = Past((10, 1, 10, "c"), (20, 1, 21, "d"))
    past.batch.has_commit[0] = False
    batch, records = events((10, 1, 10, "c"), (20, 1, 21, "d"), (30, 2, 31, "c"), start=2, has=[False, True, True])
    out = run(batch, records, State({"s": SourceState(commit=20, inner=21)}), past, unique_inner=True)
    assert out.keep.tolist() == [False, False, True]


def test_rows_of_an_incremental_snapshot_without_inner_position_raise_no_doubt():
    batch, records = events((5, 1, 10, "u"), (5, 2, 0, "r"), (5, 3, 11, "u"))
    out = run(batch, records, unique_inner=True)
    assert out.keep.all()
    assert out.state.of("s") == SourceState(commit=5, inner=11)


def test_an_event_without_commit_position_takes_the_larger_of_highest_and_its_own():
    batch, records = events((50, 1, 50, "r"), (50, 2, 50, "r"), (60, 3, 61, "u"), has=[False, False, True])
    out = run(batch, records, unique_inner=True)
    assert out.commit[:, 1].tolist() == [50, 50, 60]
    batch, records = events((50, 1, 50, "r"), has=[False], start=9)
    again = run(batch, records, out.state, unique_inner=True)
    assert again.commit[:, 1].tolist() == [60]


def test_an_offset_that_wraps_within_one_position_raises_the_epoch():
    batch, records = events((5, 1), (5, 2), start=2**31 - 1)
    out = run(batch, records)
    versions = [to_int(out.version, i) for i in range(2)]
    assert versions[0] < versions[1]
    assert [v >> 112 for v in versions] == [0, 1]


def test_kafka_offset_strategy_knows_no_backward_step():
    batch, records = events((9, 1), (1, 2))
    out = run(batch, records, State(base_epoch=2), strategy="kafka_offset")
    assert out.keep.all()
    assert [to_int(out.version, i) >> 112 for i in range(2)] == [2, 2]
    assert to_int(out.version, 0) < to_int(out.version, 1)


def test_a_state_is_raised_to_an_epoch():
    state = State({"a": SourceState(3, 2**79, 7, 1, True)}, base_epoch=4)
    assert state.raised_to(5).of("a") == SourceState(5, 2**79, 7, 1, True)
    assert state.raised_to(5).of("b").epoch == 5
    assert state.epoch == 4


def model(stream):
    """The rule in plain words: below the highest and seen before → skip; below and unseen → next epoch."""
    seen, epoch, highest, out = set(), 0, 0, []
    for commit, key in stream:
        if commit < highest and (commit, key) in seen:
            out.append(None)
        else:
            if commit < highest:
                epoch += 1
            highest = commit if commit < highest else max(highest, commit)
            out.append((epoch, commit))
        seen.add((commit, key))
    return out


@settings(max_examples=150, deadline=None)
@given(
    stream=st.lists(st.tuples(st.integers(1, 8), st.integers(1, 3)), min_size=1, max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=4),
)
def test_any_stream_cut_anyhow_follows_the_rule(stream, cuts):
    expected = model(stream)
    edges = sorted({0, len(stream), *[c for c in cuts if c < len(stream)]})
    state, found = State(), []
    for first, last in itertools.pairwise(edges):
        batch, records = events(*stream[first:last], start=first)
        out = run(batch, records, state, Past(*stream))
        found += [(int(out.epoch[i]), to_int(out.commit, i)) if out.keep[i] else None for i in range(last - first)]
        state = out.state
    assert found == expected


def test_versions_of_another_strategy_lie_above_all_that_were_before():
    state = State({"s": SourceState(epoch=2, commit=2**70)}, strategy="source_position")
    highest = run(*events((2**70, 1), start=9), state)
    offsets = run(*events((1, 1), start=10), highest.state, strategy="kafka_offset")
    later = run(*events((1, 1), start=11), offsets.state, strategy="kafka_offset")
    positions = run(*events((2**70, 1), start=12), later.state)
    versions = [to_int(out.version, 0) for out in (highest, offsets, later, positions)]
    assert versions == sorted(versions)
    assert [v >> 112 for v in versions] == [2, 3, 3, 4]


def test_a_chunk_without_events_changes_no_strategy():
    state = State(strategy="kafka_offset")
    assert run(*events(), state).state == state


def test_a_connector_of_a_new_name_goes_on_in_the_highest_epoch():
    """It was recreated, at the same server, which had been restored before."""
    before = run(*events((9, 1), start=0), State({"old": SourceState(epoch=3, commit=8)}))
    assert to_int(before.version, 0) >> 112 == 3
    batch, records = events((7, 1), (9, 2), (9, 3), start=1)
    batch.source_name, batch.source_code = ["s", "new"], np.array([0, 0, 1], dtype=np.int16)
    after = run(batch, records, State({"s": SourceState(epoch=3, commit=8)}))
    assert [to_int(after.version, i) >> 112 for i in range(3)] == [4, 4, 4]
    batch.commit[2, 1] = 8  # below what the other name has reached
    above = run(batch, records, State({"s": SourceState(epoch=3, commit=8)}))
    assert [to_int(above.version, i) >> 112 for i in range(3)] == [4, 4, 5]


def test_positions_are_followed_beside_versions_that_hold_the_offset():
    """They tell repeats and the transaction that goes on; they raise no epoch."""
    past = Past((1, 1), (9, 2), (9, 3))
    state = State({"s": SourceState(commit=9)}, base_epoch=4, strategy="kafka_offset")
    batch, records = events((1, 1), (9, 3), (5, 8), (6, 9), start=3)
    out = run(batch, records, state, past, strategy="kafka_offset", follow=True)
    assert out.keep.tolist() == [False, True, True, True]
    assert [to_int(out.version, i) >> 112 for i in range(4)] == [4] * 4
    assert [to_int(out.commit, i) for i in range(4)] == [3, 4, 5, 6]
    assert [to_int(out.transaction, i) for i in (1, 2, 3)] == [9, 5, 6]
    assert (out.state.epoch, out.state.transactions()) == (4, {(4, 6)})
    assert [s.kind for s in out.steps] == ["redelivery", "regress"]


def test_a_history_by_offset_has_no_place_for_a_repeated_dead_letter():
    """Its later changes are skipped as repeats, and would lie below it."""
    past = Past((1, 1), (2, 1), (3, 1))
    state = State({"s": SourceState(commit=3)})
    batch, records = events((1, 1), (2, 1), (3, 1), start=3)
    more = {"failed": lambda first, end: {0}, "counts": True}
    by_offset = run(batch, records, state.under("kafka_offset"), past, strategy="kafka_offset", follow=True, **more)
    assert by_offset.keep.tolist() == [False] * 3
    assert run(batch, records, state, past, **more).keep.tolist() == [True, False, False]
