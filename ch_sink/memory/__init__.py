"""A stream's stores in memory: for shadow tables, whose streams end with them, and for tests without a server.

Each keeps the promises of its protocol in `ch_sink.ports`, including those about repeats.
"""

from ch_sink.memory.ledger import MemoryLedger
from ch_sink.memory.stores import MemoryHandover, MemoryPending

__all__ = ["MemoryHandover", "MemoryLedger", "MemoryPending"]
