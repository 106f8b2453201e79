"""What a retry of dead letters asks the topic and the ledger."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ch_sink.config import load
from ch_sink.model.change import Records
from ch_sink.model.topic import TopicState
from ch_sink.ports import DeadLetter, TopicFacts
from ch_sink.spark import letters
from ch_sink.spark.letters import Letters
from ch_sink.stream.partition_states import States
from ch_sink.testing.memory_ledger import MemoryLedger
from tests.support.event import event

YAML = """
kafka: {bootstrap.servers: "localhost:1", topic: shop}
clickhouse: {url: "http://localhost:1", database: d, table: t}
source_table: shop.orders
"""


class Topic:
    """A topic that carries two tables, whose rows have the same keys."""

    def __init__(self, *tables: str) -> None:
        n = len(tables)
        values = [event("c", {"id": 1, "v": i}, db="shop", table=t) for i, t in enumerate(tables)]
        key = json.dumps({"id": 1}).encode()
        self.records = Records("shop", 0, np.arange(n), np.zeros(n, dtype=np.int64), [key] * n, list(values))

    def state(self, topic: str) -> TopicState:
        return TopicState(topic, "id", {0: 0}, {0: len(self.records)})

    def read(self, _topic: str, _partition: int, first: int, end: int) -> Iterator[Records]:
        yield self.records.slice(first, end)

    def close(self) -> None:
        pass


def later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *tables: str) -> Any:
    topic = Topic(*tables)
    (tmp_path / "s.yaml").write_text(YAML)
    monkeypatch.setattr(letters, "RangeConsumer", lambda _: topic)
    ports: Any = type("Ports", (), {"topics": topic})
    found = Letters(load(tmp_path / "s.yaml"), ports)._later_keys("id", 0, 1, len(tables), (0,))
    assert found is not None
    assert not found.compacted
    return list(found.keys.values())


def test_a_record_of_another_table_of_the_topic_does_not_follow_a_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert later(tmp_path, monkeypatch, "orders", "customers") == []
    assert later(tmp_path, monkeypatch, "orders", "orders", "customers") == [1]


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
