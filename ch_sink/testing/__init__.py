"""Run streams without Spark, Kafka and ClickHouse: the ports in memory, the coordinator in this process, kills as data.

For tests of ch_sink and of programs that build on it. See `LocalRunner`.
"""

from ch_sink.memory import MemoryGroup, MemoryHandover, MemoryLedger, MemoryPending
from ch_sink.testing.kills import ALL_POINTS, POINTS, Fault, Kill, Killed, KillSwitch
from ch_sink.testing.local_runner import LocalBatch, LocalPorts, LocalRunner
from ch_sink.testing.stream import MemoryDeadLetters, MemoryRegistry, MemoryStream, MemoryStreamStates, MemoryTopic
from ch_sink.testing.table import MemoryTable

__all__ = [
    "ALL_POINTS",
    "POINTS",
    "Fault",
    "Kill",
    "KillSwitch",
    "Killed",
    "LocalBatch",
    "LocalPorts",
    "LocalRunner",
    "MemoryDeadLetters",
    "MemoryGroup",
    "MemoryHandover",
    "MemoryLedger",
    "MemoryPending",
    "MemoryRegistry",
    "MemoryStream",
    "MemoryStreamStates",
    "MemoryTable",
    "MemoryTopic",
]
