"""What a retry of dead letters asks the topic and the ledger."""

from pathlib import Path
from typing import Any

from ch_sink.config import load
from ch_sink.memory import MemoryLedger
from ch_sink.ports import DeadLetter, TopicFacts
from ch_sink.stream.partition_states import States
from ch_sink.wiring.letters import Letters

YAML = """
kafka: {bootstrap.servers: "localhost:1", topic: shop}
clickhouse: {url: "http://localhost:1", database: d, table: t}
source_table: shop.orders
"""


def test_a_retry_leaves_a_lost_ledger_as_it_is(tmp_path: Path) -> None:
    """A noted epoch would keep the job from beginning above the rows that are stored."""
    (tmp_path / "s.yaml").write_text(YAML)
    ledger = MemoryLedger("s")
    claim = ledger.claim("retry")
    ports: Any = type("Ports", (), {"ledger": ledger, "table": type("Table", (), {"detect": lambda: None})})
    letter = DeadLetter("shop", 0, 7, 0, None, b"{}", (), "decode", None, "bad")
    done = Letters(load(tmp_path / "s.yaml"), ports)._retry(claim, "id", 0, [letter])
    assert list(done.failed) == [7]
    assert ledger.facts(TopicFacts) == []
    assert States(ledger, "id", 1, 2).at(0, 0).epoch == 3
