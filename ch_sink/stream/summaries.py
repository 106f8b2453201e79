"""Old results folded into summaries, so that a ledger does not grow with the number of batches.

A partition keeps its newest results as they are. Older ones become one summary for each day, and after `DAYS_APART`
days one for each month. Changes of two epochs are in two summaries: a dead letter may be retried much later, in the
epoch in which it was read. What a summary spans counts as its own from then on, whether or not the folded entries were
deleted. So a fold may end at any point and begin again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from ch_sink.model.counts import total
from ch_sink.order import State
from ch_sink.ports import FinishedRange, PartitionTotals, RangeSummary

KEEP = 500
"""How many results a partition keeps at least."""
DAYS_APART = 35
"""Days for which each day has a summary of its own."""

Item = FinishedRange | RangeSummary


@dataclass(frozen=True, slots=True)
class Written:
    """A result or a summary with its place in the order of the ledger's entries."""

    order: int
    entry: Item


def fold_due(stream: str, keep: int = KEEP) -> int:
    """How many results a partition has when they are folded: another number for each stream, so that the streams of a
    job do not all fold in one batch.
    """
    return 2 * keep + sum(stream.encode()) * 31 % max(1, keep)


def standing(summaries: Iterable[Written]) -> list[Written]:
    """The summaries of one partition that no other one contains, in the order of their offsets."""
    found: list[Written] = []
    for one in sorted(summaries, key=lambda s: (s.entry.start, -s.entry.end, -s.order)):
        if not found or one.entry.end > max(s.entry.end for s in found):
            found.append(one)
    return found


def covered(summaries: Iterable[RangeSummary]) -> list[tuple[int, int]]:
    """The offsets that summaries of one partition contain, as ranges that do not touch."""
    found: list[tuple[int, int]] = []
    for start, end in sorted((s.start, s.end) for s in summaries):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def fold(
    results: Sequence[Written], summaries: Sequence[Written], intents: Sequence[tuple[int, int]], now: float
) -> list[RangeSummary]:
    """The summaries to write for results of one partition, all of which may be folded.

    Args:
        summaries: those that stand; see `standing`.
        intents: ranges that were intended, each as often as it was.
        now: seconds since 1970.
    """
    items = [*summaries, *_uncounted(results, summaries)]
    items.sort(key=lambda w: (w.entry.start, w.entry.end))
    groups: list[list[Written]] = []
    end, finished, epoch = -1, 0.0, -1
    for item in items:
        one = item.entry
        own = State.base_epoch_of(one.state) if one.start < one.end else -1  # nothing was read in it
        same_time = bool(groups) and _period(finished, now) == _period(one.finished, now)
        if groups and (one.end <= end or (same_time and (epoch in (-1, own) or own < 0))):
            groups[-1].append(item)
            epoch = own if epoch < 0 else epoch
        else:
            groups.append([item])
            end, finished, epoch = one.end, one.finished, own
        end, finished = max(end, one.end), max(finished, one.finished)
    new = [group for group in groups if not _is_known(group, results, intents)]
    return [_sum(group, results, intents) for group in new]


def with_summaries(
    totals: Sequence[PartitionTotals], summaries: Mapping[tuple[str, int], Sequence[RangeSummary]]
) -> list[PartitionTotals]:
    """Totals of the results that no summary contains, plus the summaries by (topic id, partition)."""
    by_place = {(t.topic_id, t.partition): t for t in totals}
    for place, folded in summaries.items():
        for s in folded:
            by_place[place] = _added(by_place.get(place), s)
    return [by_place[place] for place in sorted(by_place)]


def _uncounted(results: Sequence[Written], summaries: Sequence[Written]) -> list[Written]:
    """The results that no summary contains; of a range that was run more than once the last."""
    known = covered(s.entry for s in summaries if isinstance(s.entry, RangeSummary))
    last: dict[tuple[int, int], Written] = {}
    for w in sorted(results, key=lambda w: w.order):
        if not any(start <= w.entry.start and w.entry.end <= end for start, end in known):
            last[w.entry.start, w.entry.end] = w
    return list(last.values())


def _is_known(group: Sequence[Written], results: Sequence[Written], intents: Sequence[tuple[int, int]]) -> bool:
    """The group is one summary that stands already, and nothing within it was begun again."""
    (first, *others) = group
    again = [*((w.entry.start, w.entry.end) for w in results), *intents]
    return (
        not others
        and isinstance(first.entry, RangeSummary)
        and not any(first.entry.start < end and start < first.entry.end for start, end in again)
    )


def _sum(group: Sequence[Written], results: Sequence[Written], intents: Sequence[tuple[int, int]]) -> RangeSummary:
    entries = [w.entry for w in group]
    last = _last(group, results).entry
    start, end = min(e.start for e in entries), max(e.end for e in entries)
    intended = sum(first <= end and start <= after for first, after in intents)
    return RangeSummary(
        last.topic,
        last.topic_id,
        last.partition,
        start,
        end,
        intended + sum(e.batches for e in entries if isinstance(e, RangeSummary)),
        total(e.counts for e in entries),
        state=last.state,
        started=min(e.started for e in entries),
        finished=max(e.finished for e in entries),
        steps=tuple(sorted((s for e in entries for s in e.steps if s.kind != "redelivery"), key=lambda s: s.offset)),
    )


def _last(group: Sequence[Written], results: Sequence[Written]) -> Written:
    """Of what ended at the group's end, the last: its state is the one with which reading continued there."""
    end = max(w.entry.end for w in group)
    return max((w for w in (*group, *results) if w.entry.end == end), key=lambda w: w.order)


def _period(finished: float, now: float) -> tuple[int, ...]:
    day = datetime.fromtimestamp(finished, UTC)
    return (day.year, day.month) if now - finished > DAYS_APART * 86_400 else (day.year, day.month, day.day)


def _added(before: PartitionTotals | None, s: RangeSummary) -> PartitionTotals:
    if before is None:
        return PartitionTotals(s.topic, s.topic_id, s.partition, s.end, s.counts, s.state, s.finished)
    return replace(
        before,
        next_offset=max(before.next_offset, s.end),
        counts=total((before.counts, s.counts)),
        finished=max(before.finished, s.finished),
    )
