"""Commands refuse a topic that lost records after they were read, and accept one that grows while they begin."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import pytest

from ch_sink.clickhouse import Client
from ch_sink.errors import DataLoss
from ch_sink.model.values import TopicState
from ch_sink.trust.repair import repaired
from ch_sink.trust.resync import resynced
from ch_sink.trust.subject import Options
from ch_sink.trust.verify import verified
from tests.support.hand import insert
from tests.support.hand_commands import Hand, hand
from tests.support.hand_steps import Rows

pytestmark = pytest.mark.integration

EVENTS = [insert(n, "a", 100 * n) for n in range(1, 10)]


def test_commands_against_the_topic_are_refused_and_change_nothing(client: Client, database: str) -> None:
    it = hand(client, database, "replacing", EVENTS[:4])
    it.read((0, 4))
    it.topic(EVENTS[:2])
    lost = "offsets up to 3 were read, but the topic ends with 1"
    with pytest.raises(DataLoss, match=lost), verified(it.subject, Options(patience=0)):
        pass
    with pytest.raises(DataLoss, match=lost):
        repaired(it.subject, Options(patience=0), apply=True)
    it.source = Rows(it.view())
    against: Literal["source", "topic"]
    for against in ("source", "topic"):
        with pytest.raises(DataLoss, match=lost):
            resynced(it.refill, apply=True, against=against)
    with pytest.raises(DataLoss, match=lost):
        it.read_all()
    assert len(it.view()) == 4


@dataclass
class Growing:
    """The topic grows behind the first answer to where it ends, and the stream reads that."""

    it: Hand
    inner: Any
    grown: bool = False

    def state(self, topic: str) -> TopicState:
        found: TopicState = self.inner.state(topic)
        found = replace(found, low=dict(found.low), high=dict(found.high))
        if not self.grown:
            self.grown = True
            self.it.topic(EVENTS)
            self.it.feed.at = {0: 4}
            self.it.read((0, 9))
            self.inner = self.it.subject.topic
        return found

    def chunks(self, *place: Any) -> Iterator[Any]:
        return iter(self.inner.chunks(*place))

    def history(self, partition: int) -> Any:
        return self.inner.history(partition)


@pytest.mark.parametrize("engine", ["replacing", "append"])
def test_a_stream_may_read_on_while_a_command_begins(client: Client, database: str, engine: str) -> None:
    it = hand(client, database, engine, EVENTS[:4])
    it.read((0, 4))
    subject = it.subject
    with verified(replace(subject, topic=Growing(it, subject.topic)), Options(patience=2)) as done:
        report = done.report
    assert (report.missing, report.extra, report.different) == (0, 0, 0)
