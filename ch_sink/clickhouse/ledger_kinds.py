"""Which kinds of entries a stream's ledger holds, so that its owner need not ask for what cannot be there.

A stream that is opened asks some twenty questions. Of a new stream all answers are empty, and of most others those
about schema changes, truncates and summaries: one question for the kinds answers them all.
"""

from ch_sink.clickhouse import ledger_queries as ask
from ch_sink.ports import (
    BackwardStepSeen,
    FinishedRange,
    RangeIntent,
    SchemaChangeBegun,
    SchemaChangeFinished,
    TableRefilled,
    TopicFacts,
    TruncateFloor,
)

__all__ = ["CLAIM_AND_KINDS", "needs"]

CLAIM_AND_KINDS = f"""\
SELECT *, (SELECT groupUniqArray(entry) FROM $table WHERE stream = {{stream:String}}) AS kinds
FROM ({ask.NEWEST_CLAIM})"""
"""The newest claim, and the kinds of the stream's entries."""

_INTENT, _RESULT, _SUMMARY = {RangeIntent.kind}, {FinishedRange.kind}, {"summary"}
_NEEDS = {
    ask.INTENDED: _INTENT,
    ask.STATES_AT: _RESULT | _SUMMARY,
    ask.STATE_BEFORE: _RESULT | _SUMMARY,
    ask.STATES_OVER: _RESULT | _SUMMARY,
    ask.PROGRESS: _RESULT,
    ask.OPEN_INTENTS: _INTENT,
    ask.TOPIC_IDS: _INTENT | _RESULT,
    ask.HISTORY: _RESULT,
    ask.TOTALS: _RESULT,
    ask.LAST_STATES: _RESULT,
    ask.SUMMARIES: _SUMMARY,
    ask.RESULTS_BY_PLACE: _RESULT,
    ask.LAST_SCHEMA_CHANGE: {SchemaChangeBegun.kind, SchemaChangeFinished.kind},
}
"""Queries that return no rows without entries of one of these kinds, all of which only the owner writes."""
_FACTS = (
    TruncateFloor,
    TopicFacts,
    SchemaChangeBegun,
    SchemaChangeFinished,
    BackwardStepSeen,
    TableRefilled,
)


def needs(sql: str, kind: object = None) -> frozenset[str] | None:
    """Without entries of one of these kinds the query returns no rows; None: it has to be asked.

    ``kind``: the query's parameter of this name.
    """
    if sql == ask.FACTS:
        return frozenset({str(kind)}) if kind in {fact.kind for fact in _FACTS} else None
    found = _NEEDS.get(sql)
    return None if found is None else frozenset(found)
