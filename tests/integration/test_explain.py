"""`explain` names the rule that decided about each event, in the cases that are hard to get right."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from ch_sink.decode import Decoder
from ch_sink.errors import StreamFailed
from ch_sink.model.topic import TopicState
from ch_sink.pipeline.chunks import Chunk, cut
from ch_sink.stream.tasks import RangeTask
from ch_sink.trust.explain import biography, stored_rows
from tests.support.hand import Event, HandFed, key_change, mysql, postgres
from tests.support.hand_tables import Make, delete, insert, key, row, update

pytestmark = pytest.mark.integration


@dataclass(frozen=True, slots=True)
class ByHand:
    """The topic of hand-written events."""

    fed: HandFed

    def state(self, topic: str) -> TopicState:
        return TopicState(topic, "id", dict.fromkeys(self.fed.log, 0), {p: len(e) for p, e in self.fed.log.items()})

    def chunks(self, task: RangeTask, first: int) -> Iterator[Chunk]:
        records = self.fed._records(task.partition, first, task.end)
        return cut(iter([records]), first, task.end, chunk_offsets=2, chunk_bytes=1 << 20)

    def history(self, partition: int) -> Any:
        return self.fed.sink(partition).ports.history


def rules(fed: HandFed, number: int = 1) -> list[tuple[str, str]]:
    decoder = Decoder(fed.table, fed.policy)
    found = biography(ByHand(fed), "t", fed.target, decoder, key(number))
    return [(event.op, event.rule) for event in found.events]


def test_case_01_the_last_change_of_a_transaction_is_newer(make: Make) -> None:
    fed = make("replacing")
    fed.feed([insert(1, "0", 500), *(update(row(1, str(i)), row(1, str(i + 1)), 500, row=i) for i in range(2))])
    assert rules(fed) == [("c", "superseded"), ("u", "superseded"), ("u", "newer")]
    assert [r["_is_deleted"] for r in stored_rows(fed.client, fed.table, key(1))][-1] == "0"


def test_case_02_a_late_commit_is_newer(make: Make) -> None:
    fed = make("replacing")
    fed.feed([postgres("c", key(1), None, row(1, "a"), 100, 90), postgres("u", key(1), None, row(1, "b"), 400, 300)])
    fed.feed([postgres("u", key(1), None, row(1, "late"), 900, 150)])
    assert rules(fed) == [("c", "superseded"), ("u", "superseded"), ("u", "newer")]


def test_case_05_a_stretch_that_is_sent_again_is_re_delivered(make: Make) -> None:
    fed = make("replacing")
    changes = [insert(1, "a", 500), update(row(1, "a"), row(1, "b"), 600)]
    fed.feed([*changes, *changes])
    assert rules(fed) == [("c", "superseded"), ("u", "superseded"), ("c", "re-delivered"), ("u", "newer")]


def test_case_07_a_key_change_hands_the_row_over(make: Make) -> None:
    fed = make("replacing")
    halves = key_change(delete(row(1, "a"), 700), insert(2, "a", 700))
    fed.feed([insert(1, "a", 500), *halves])
    assert rules(fed) == [("c", "superseded"), ("d", "handed over")]
    assert rules(fed, 2) == [("c", "newer")]


def test_case_08_a_deleted_row(make: Make) -> None:
    fed = make("replacing")
    fed.feed([insert(1, "a", 500), delete(row(1, "a"), 600)])
    assert rules(fed) == [("c", "superseded"), ("d", "newer")]


def test_case_10_rows_below_a_truncate(make: Make) -> None:
    fed = make("replacing")
    truncate = mysql("t", None, None, None, 600)
    fed.feed([insert(1, "a", 500), Event(None, truncate.value), insert(1, "b", 700)])
    assert rules(fed) == [("c", "floor"), ("c", "newer")]


def test_case_15_a_dead_letter(make: Make) -> None:
    fed = make("replacing")
    poison = Event(key(1), {"op": "u", "after": {"id": "no number"}, "source": insert(1, "a", 500).value["source"]})  # type: ignore[index]
    fed.feed([insert(1, "a", 500)])
    fed.log[0].append((1, poison))
    assert [rule for _, rule in rules(fed)] == ["newer", "dead letter"]


def test_a_key_that_the_events_do_not_have_is_named(make: Make) -> None:
    fed = make("replacing")
    fed.feed([insert(1, "a", 500)])
    with pytest.raises(StreamFailed, match="no key column 'nothing'"):
        biography(ByHand(fed), "t", fed.target, Decoder(fed.table, fed.policy), {"nothing": 1})
