"""The protocols between the core and external systems; each has a real and an in-memory implementation."""

from ch_sink.ports.dead_letters import DeadLetter, DeadLetters, StoredLetter
from ch_sink.ports.fence import Fence
from ch_sink.ports.handover import HandedOver, Handover
from ch_sink.ports.history import History
from ch_sink.ports.ledger import Ledger, PartitionTotals, TaskLedger
from ch_sink.ports.ledger_entries import (
    CLOCKS,
    BackwardStepSeen,
    ChangedColumn,
    ChunkCut,
    Claim,
    Execution,
    Fact,
    FinishedRange,
    RangeIntent,
    RangeProgress,
    RangeSummary,
    ReleaseGroup,
    RowsRemoved,
    SchemaChangeBegun,
    SchemaChangeFinished,
    TableRefilled,
    TableRepaired,
    TopicFacts,
    TruncateFloor,
)
from ch_sink.ports.lookup import RowLookup, StoredRows
from ch_sink.ports.pending import AppliedSwap, Pending, PendingRecord
from ch_sink.ports.schema_registry import RegisteredSchema, SchemaRegistry
from ch_sink.ports.stream_states import Alive, Compared, Condition, RecordedState, Request, StreamStates
from ch_sink.ports.writer import Insert, TableWriter

__all__ = [
    "CLOCKS",
    "Alive",
    "AppliedSwap",
    "BackwardStepSeen",
    "ChangedColumn",
    "ChunkCut",
    "Claim",
    "Compared",
    "Condition",
    "DeadLetter",
    "DeadLetters",
    "Execution",
    "Fact",
    "Fence",
    "FinishedRange",
    "HandedOver",
    "Handover",
    "History",
    "Insert",
    "Ledger",
    "PartitionTotals",
    "Pending",
    "PendingRecord",
    "RangeIntent",
    "RangeProgress",
    "RangeSummary",
    "RecordedState",
    "RegisteredSchema",
    "ReleaseGroup",
    "Request",
    "RowLookup",
    "RowsRemoved",
    "SchemaChangeBegun",
    "SchemaChangeFinished",
    "SchemaRegistry",
    "StoredLetter",
    "StoredRows",
    "StreamStates",
    "TableRefilled",
    "TableRepaired",
    "TableWriter",
    "TaskLedger",
    "TopicFacts",
    "TruncateFloor",
]
