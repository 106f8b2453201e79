"""What the ledger notes of a repair from the source, or of one of counted rows, by partition."""

from dataclasses import dataclass, field, replace

from ch_sink.clickhouse import max_version
from ch_sink.pipeline.target import Target
from ch_sink.ports import TableRefilled, TableRepaired, TableTakenBack, TruncateFloor
from ch_sink.stream.evidence import Evidence, repairs, shows_losses, standing
from ch_sink.table.model import forgets_deletes
from ch_sink.trust.repaired_versions import counts, written_below
from ch_sink.trust.subject import Subject
from ch_sink.trust.verify import FOUND, Verified

__all__ = ["RepairNotes"]


@dataclass(slots=True)
class RepairNotes:
    """The notes of one repair. The stream reads them when it starts (`ch_sink.stream.evidence`)."""

    subject: Subject
    found: Verified
    noted: list[TableRepaired] = field(default_factory=list)

    def begin(self, limits: tuple[int, int] | None, lowest: int | None) -> None:
        """Before rows are written.

        Args:
            limits: `last_versions` of the stream.
            lowest: `ceiling_of` the lower one.
        """
        subject, found = self.subject, self.found
        outranked = True  # unless no older change of the topic would win over what is written if it is read again
        if subject.key and lowest is not None and limits is not None and not forgets_deletes(subject.table):
            outranked = found.differences.count(FOUND, written_below(subject.table, subject.key, lowest, limits[1])) > 0
        since, back = len(subject.ledger.facts(TableRefilled)), len(subject.ledger.facts(TableTakenBack))
        self.noted = [
            TableRepaired(found.topic_id, p, offset, since, outranked, back=back)
            for p, offset in sorted(found.applied.items())
        ]
        subject.ledger.note(*self.noted)

    def end(self, lowest: int | None, *, equal: bool) -> None:
        """After rows were written, or none had to be.

        ``equal``: the whole table is that of the source.
        """
        subject, facts = self.subject, list(self.noted)
        if equal and counts(subject.table):
            # Before the version is read: rows are stored before their results.
            evidence = self._evidence()
            left = max_version(subject.client, subject.table, -1, subject.condition)
            facts = [replace(fact, left=str(left)) for fact in facts] or self._anew(left, evidence)
        if self.noted and not self.noted[0].outranked and self.found.differences.count(FOUND, "kind != 'extra'"):
            facts = [replace(fact, top=str(lowest)) for fact in facts]
        if facts != self.noted:
            subject.ledger.note(*facts)

    def _evidence(self) -> Evidence | None:
        """What the stream expects of the table, None if it does not look."""
        ledger, found = self.subject.ledger, self.found
        if self.noted or not shows_losses(Target.of(self.subject.table, self.subject.settings.policy)):
            return None
        truncates, back = ledger.facts(TruncateFloor), ledger.facts(TableTakenBack)
        return Evidence.of(ledger, found.topic_id, len(found.applied), truncates, back)

    def _anew(self, left: int, evidence: Evidence | None) -> list[TableRepaired]:
        """What is to be noted if nothing was written, because the last repair does not say what the table has.

        It was of a part of it, or was killed; or the table lacks its rows, and the source no longer has them.
        """
        ledger, found = self.subject.ledger, self.found
        since, back = len(ledger.facts(TableRefilled)), len(ledger.facts(TableTakenBack))
        former = repairs(ledger, found.topic_id, since)
        if former and evidence is not None and not evidence.is_met(left):
            # Where changes are lost, so are marks of deleted rows that would win over older changes.
            outranked = not evidence.has_changes(left)
            return [
                TableRepaired(found.topic_id, p, offset, since, outranked, left=str(left), back=back)
                for p, offset in sorted(found.applied.items())
            ]
        last = {fact.partition: fact for fact in former}.values()
        if all(f.left and f.back == back and int(f.left) <= left for f in last):
            return []
        top = max(int(fact.top) for fact in standing(former))
        return [replace(fact, top=str(top if top <= left else -1), left=str(left), back=back) for fact in last]
