"""Progress and status of a stream as plain structures: filled by the job and from the ledger, shown by the commands."""

from ch_sink.observe.progress import Figures, StreamSummary, progress_line
from ch_sink.observe.status import PartitionStatus, StreamState, StreamStatus, stream_status, worst_first

__all__ = [
    "Figures",
    "PartitionStatus",
    "StreamState",
    "StreamStatus",
    "StreamSummary",
    "progress_line",
    "stream_status",
    "worst_first",
]
