"""What a worker keeps of a stream: decoders, for the same table only, and for one task at a time."""

from typing import Any

import pytest

from ch_sink.table.model import TargetTable
from ch_sink.wiring.worker import KeptStream
from tests.model import LAYOUTS
from tests.support.harness import ENGINES, target_table

LAYOUT = next(iter(LAYOUTS.values()))
TEXT = '{"kafka": {"topic": "t", "bootstrap.servers": "k:9092"}, "clickhouse": {"url": "http://h:8123", "table": "t"}}'


def table(engine: str = "replacing") -> TargetTable:
    return target_table(LAYOUT, ENGINES[engine])


def make(made: list[Any]) -> Any:
    def new(_table: TargetTable, _before: bool) -> Any:
        made.append(object())
        return made[-1]

    return new


def fail(kept: KeptStream, new: Any) -> None:
    with kept.decoders(new) as take:
        take(table(), False)
        raise ZeroDivisionError


def test_a_decoder_is_used_again_for_an_equal_table() -> None:
    kept, made = KeptStream(TEXT), list[Any]()
    for _ in range(3):
        with kept.decoders(make(made)) as take:
            assert take(table(), False) is made[0]
    with kept.decoders(make(made)) as take:
        assert take(table("collapsing"), False) is made[1], "the table has changed"
    with kept.decoders(make(made)) as take:
        assert take(table("collapsing"), True) is made[2], "with before images"


def test_two_tasks_at_once_have_a_decoder_each_and_a_failed_one_leaves_none() -> None:
    kept, made = KeptStream(TEXT), list[Any]()
    with kept.decoders(make(made)) as take, kept.decoders(make(made)) as other:
        assert take(table(), False) is not other(table(), False)
    with pytest.raises(ZeroDivisionError):
        fail(kept, make(made))
    assert len(made) == 2
    with kept.decoders(make(made)) as take, kept.decoders(make(made)) as other:
        take(table(), False)
        other(table(), False)
    assert len(made) == 3
