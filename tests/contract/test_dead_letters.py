"""What every DeadLetters implementation keeps."""

import time
from typing import Any

import pytest

from ch_sink.clickhouse import ClickHouseDeadLetters, Client
from ch_sink.clickhouse.state_table import StateTable
from ch_sink.ports import DeadLetter
from tests.support.memory_stream import MemoryDeadLetters


@pytest.fixture(params=["memory", "clickhouse"])
def letters(request: pytest.FixtureRequest) -> Any:
    if request.param == "memory":
        return MemoryDeadLetters()
    client: Client = request.getfixturevalue("client")
    return ClickHouseDeadLetters(
        client, request.getfixturevalue("own_tables"), "dead_letters", request.getfixturevalue("stream"), "topic-1"
    )


def letter(offset: int, partition: int = 0, **changes: Any) -> DeadLetter:
    base: dict[str, Any] = {
        "topic": "shop.orders",
        "partition": partition,
        "offset": offset,
        "timestamp": 1_700_000_000_123,
        "key": b'{"id":1}',
        "value": b"\x00\xff\xfe not utf-8 \xc3",
        "headers": (("__debezium.newkey", b"\xff\x00"), ("empty", None), ("twice", b"1"), ("twice", b"2")),
        "kind": "decode",
        "column": "amount",
        "reason": "it's \\ a 'quoted'\nreason – long",
    }
    return DeadLetter(**{**base, **changes})


def test_a_letter_comes_back_whole(letters: Any) -> None:
    letters.put([letter(7)], "t")
    (stored,) = letters.list()
    assert stored.letter == letter(7)
    assert stored.retried is None
    assert stored.time > 1_700_000_000


def test_missing_parts_stay_missing(letters: Any) -> None:
    bare = letter(1, key=None, value=None, headers=(), column=None, timestamp=-1)
    empty = letter(2, key=b"", value=b"")
    letters.put([bare, empty], "t")
    assert [s.letter for s in letters.list()] == [bare, empty]


def test_a_repeat_of_an_offset_is_stored_once_and_the_newest_counts(letters: Any) -> None:
    letters.put([letter(7), letter(8)], "t")
    letters.put([letter(7), letter(8)], "t")
    letters.put([letter(8, reason="other")], "u")
    assert [s.letter for s in letters.list()] == [letter(7), letter(8, reason="other")]


def test_letters_are_listed_by_partition_and_offset_up_to_the_limit(letters: Any) -> None:
    letters.put([letter(3, 1), letter(12, 0), letter(2, 0)], "t")
    assert [(s.letter.partition, s.letter.offset) for s in letters.list()] == [(0, 2), (0, 12), (1, 3)]
    assert len(letters.list(2)) == 2


def test_letters_that_are_settled_are_listed_only_when_asked_for(letters: Any) -> None:
    letters.put([letter(1), letter(2, kind="range"), letter(1, 1)], "t")
    letters.settle([(0, 1), (0, 99)], "applied")
    letters.settle([], "applied")
    assert [(s.letter.partition, s.letter.offset) for s in letters.list()] == [(0, 2), (1, 1)]
    everything = letters.list(retried=True)
    assert [s.retried is not None for s in everything] == [True, False, False]
    assert everything[0].letter == letter(1)
    assert [s.outcome for s in everything] == ["applied", "", ""]
    assert letters.count() == {"decode": 1, "range": 1}


def test_letters_of_all_topics_of_the_stream_count(client: Client, own_tables: str, stream: str) -> None:
    """A topic that was created again leaves those of the former one open."""
    for topic_id in ("topic-1", "topic-2"):
        letters = ClickHouseDeadLetters(client, own_tables, "dead_letters", stream, topic_id)
        letters.put([letter(1)], "t")
    assert letters.count() == {"decode": 2}


def test_a_letter_put_again_after_it_was_retried_is_open_again(letters: Any) -> None:
    letters.put([letter(1)], "t")
    letters.settle([(0, 1)], "dropped")
    letters.put([letter(1)], "t")
    assert len(letters.list()) == 1


def test_offsets_of_records_that_were_not_applied(letters: Any) -> None:
    letters.put([letter(o) for o in (1, 3, 5, 7)] + [letter(4, 1)], "t")
    letters.settle([(0, 3)], "superseded")
    assert letters.failed(0, 1, 7) == [1, 5]
    assert letters.failed(1, 0, 10) == [4]
    assert letters.failed(2, 0, 10) == []


def test_nothing_to_put_is_nothing(letters: Any) -> None:
    letters.put([], "t")
    assert letters.list() == []
    assert letters.count() == {}


def test_streams_do_not_see_each_other(client: Client, own_tables: str, stream: str) -> None:
    one = ClickHouseDeadLetters(client, own_tables, "dead_letters", stream, "t1")
    ClickHouseDeadLetters(client, own_tables, "dead_letters", stream + "x", "t1").put([letter(1)], "t")
    ClickHouseDeadLetters(client, own_tables, "dead_letters", stream, "t2").put([letter(1)], "t")
    assert one.list() == []


def test_the_newest_letters_of_all_topics_are_read_and_no_others(
    client: Client, own_tables: str, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (ClickHouseDeadLetters(client, own_tables, "dead_letters", stream, topic_id) for topic_id in "ab")
    one.put([letter(offset, kind="range" if offset == 3 else "decode") for offset in range(90)], "t")
    time.sleep(0.01)
    two.put([letter(7, 1), letter(5), letter(6)], "t")
    two.settle([(0, 6)], "dropped")
    read: list[int] = []
    arrow = StateTable.arrow

    def counted(*arguments: Any, **named: Any) -> Any:
        found = arrow(*arguments, **named)
        read.append(found.num_rows)
        return found

    monkeypatch.setattr(StateTable, "arrow", counted)
    newest = one.newest(4)
    assert [(s.letter.partition, s.letter.offset) for s in newest] == [(1, 7), (0, 5), (0, 89), (0, 88)]
    assert newest[0].letter == letter(7, 1)
    assert [s.letter for s in one.newest(4, "range")] == [letter(3, kind="range")]
    assert [s.letter for s in one.newest(1, whole=False)] == [letter(7, 1, key=None, value=None, headers=())]
    assert read == [4, 1, 1]
