"""Looks at the start of a stream whether ClickHouse was taken back, and leads the ledger back to what it lacks."""

import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from ch_sink.errors import StreamFailed
from ch_sink.model.topic import TopicState
from ch_sink.pipeline.target import Target
from ch_sink.ports import FinishedRange, Ledger, TableRefilled, TableTakenBack
from ch_sink.stream.evidence import Evidence, Filling, behind, shows_losses, since_begun
from ch_sink.stream.partition_states import States
from ch_sink.stream.ports import StreamPorts
from ch_sink.stream.rollback import (
    ahead,
    lacks_filling,
    lacks_repair,
    lacks_repaired_rows,
    read_again_from,
    taken_back,
    undoes_repairs,
)
from ch_sink.table.fill_note import to_enter
from ch_sink.table.model import TargetTable

__all__ = ["ReadingAgain", "expect_entered", "is_entered"]

log = logging.getLogger("ch_sink")

_HISTORY = 1500
"""How many results of each partition are looked at to find where a table was taken back to."""


@dataclass(frozen=True, slots=True)
class ReadingAgain:
    """The look at one stream's table, ledger and consumer group."""

    stream: str
    topic: str
    ports: StreamPorts
    stops: bool
    """Whether the stream is to stop if ClickHouse was taken back."""

    def replays(
        self, state: TopicState, target: Target, states: States, stored_version: int | None
    ) -> dict[int, tuple[str, int]]:
        """See whether ClickHouse is behind what the stream has stored, and lead the ledger back if it is.

        Args:
            stored_version: the highest version of the stream's rows, −1 for none, None if versions are no positions.

        Returns:
            Partition → name of the replay that all tokens carry since, and the offset up to which it reads again.

        Raises:
            StreamFailed: the stream is to stop then, or would store changes of a history twice.
        """
        ledger, topic_id = self.ports.ledger, state.topic_id
        known = ledger.topic_ids()[:1]
        back = ledger.facts(TableTakenBack)
        ask = partial(Evidence.of, ledger, topic_id, len(state.low), states.truncates, back)
        ends = {t.partition: t.next_offset for t in ledger.totals() if t.topic_id == topic_id}
        if known in ([], [topic_id]):
            # Another server may have the history and no ledger, or an older one.
            doubles = target.appends and (stored_version is None or stored_version > ask().stored)
            self._look_at_group(state, ends, doubles=doubles)
        found = {t.partition: (t.replay, t.end) for t in back if t.topic_id == topic_id}
        if stored_version is None or not shows_losses(target):
            return found
        evidence = ask()
        if evidence.is_met(stored_version):
            return found
        # A job that was frozen since it read the version compares an old answer with its successor's ledger.
        ledger.check_claim()
        table = target.table.qualified.replace("`", "")
        what = (
            f"the highest version in {table} is {stored_version}"
            if stored_version >= 0
            else f"{table} has none of its rows"
        )
        what += f", and the last results of the ledger have stored {evidence.stored}"
        if self.stops or target.appends:
            raise taken_back(self.stream, what, appends=target.appends)
        if evidence.has_changes(stored_version):
            raise lacks_repaired_rows(self.stream, f"{what}, and a repair {evidence.of_repairs}")
        reached = ledger.progress(topic_id)
        ends = {p: max(end, reached.get(p, end)) for p, (_, end) in found.items()}
        return found | self._lead_back(what, state, states, stored_version, {**reached, **ends}, evidence.filling)

    def _look_at_group(self, state: TopicState, ends: Mapping[int, int], *, doubles: bool) -> None:
        """See whether the consumer group is ahead of the ledger's ends: at once if the stream is to stop then.

        ``doubles``: the table is a history with rows of which the ledger does not know; they would be stored twice.
        """
        partitions = sorted(state.low)

        def notice(committed: Mapping[int, int]) -> None:
            if behind := ahead(committed, ends):
                log.warning("%s: ClickHouse was taken back, and is read again: %s", self.stream, behind)

        if not (self.stops or doubles):
            self.ports.group.before_commit(self.topic, partitions, notice)
        elif behind := ahead(self.ports.group.last_committed(self.topic, partitions), ends):
            self.ports.ledger.check_claim()  # its successor's commits say nothing about ClickHouse
            raise taken_back(self.stream, behind, appends=doubles)

    def _lead_back(
        self,
        what: str,
        state: TopicState,
        states: States,
        stored_version: int,
        reached: Mapping[int, int],
        filling: Filling,
    ) -> dict[int, tuple[str, int]]:
        """Lead the ledger back to where the table lacks something."""
        ledger, topic_id = self.ports.ledger, state.topic_id
        fillings = len(ledger.facts(TableRefilled))
        results = [r for r in ledger.history(_HISTORY * len(state.low)) if r.topic_id == topic_id]
        kept = filling.is_in(stored_version)
        starts = read_again_from(behind(results, filling.offsets) if kept is not False else results, stored_version)
        renewed = read_again_from(since_begun(results), stored_version)
        if starts is not None and renewed is not None:  # what was read again was stored in another order
            starts = {p: min(at, renewed.get(p, at)) for p, at in starts.items()}
        if filling.from_source and (kept is False or (kept is None and starts is None)):
            raise lacks_filling(self.stream, what)
        if starts is None:
            starts = {p: max(low, filling.offsets.get(p, 0) if kept else 0) for p, low in state.low.items()}
        if undoes_repairs(ledger, topic_id, starts, stored_version):
            raise lacks_repair(self.stream, what)
        places = ", ".join(f"{at} of partition {p}" for p, at in sorted(starts.items()))
        log.warning("%s: ClickHouse lacks what the stream has stored: %s", self.stream, what)
        log.warning("%s: reading again from offset %s", self.stream, places)
        replay = uuid.uuid4().hex[:8]
        ledger.record(
            *(
                TableTakenBack(topic_id, p, at, reached.get(p, at), replay, fillings, str(stored_version))
                for p, at in sorted(starts.items())
            )
        )
        now = time.time()
        ledger.results(
            [
                FinishedRange(
                    self.topic, topic_id, p, at, at, state=states.at(p, at).to_json(), started=now, finished=now
                )
                for p, at in sorted(starts.items())
            ]
        )
        return {p: (replay, reached.get(p, at)) for p, at in starts.items()}


def is_entered(comment: str, ledger: Ledger, topic_id: str) -> bool:
    """Whether the ledger knows of the filling that a table's comment notes, if it notes one."""
    noted = to_enter(comment)
    if noted is None:
        return True
    if not {TableRefilled(**fact) for fact in noted["refilled"]} <= set(ledger.facts(TableRefilled)):
        return False
    return "resolved" in noted or bool(ledger.progress(topic_id))


def expect_entered(table: TargetTable, ledger: Ledger, topic_id: str) -> None:
    """Raises StreamFailed if the table was filled anew, and the ledger does not know up to where."""
    if not is_entered(table.comment, ledger, topic_id):
        again = "resync" if "resolved" in (to_enter(table.comment) or ()) else "bootstrap` or `ch_sink backfill"
        raise StreamFailed(
            f"{table.qualified} was filled by a run that was killed before the ledger knew up to where",
            hint=f"Run the same `ch_sink {again}` with --apply once more, which ends it.",
        )
