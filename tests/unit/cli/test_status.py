"""What ``ch_sink status`` prints."""

import pytest

from ch_sink.cli.output import Output
from ch_sink.cli.status import show
from ch_sink.observe import PartitionStatus, StreamStatus


def partition(number: int, high: int, low: int = 0) -> PartitionStatus:
    return PartitionStatus(number, 10, low, high)


def shown(capsys: pytest.CaptureFixture[str], *partitions: PartitionStatus, **more: object) -> str:
    show(Output(), StreamStatus("s", "t", "id", "db.t", partitions, **more))  # type: ignore[arg-type]
    return capsys.readouterr().out


def test_numbers_agree_with_their_nouns(capsys: pytest.CaptureFixture[str]) -> None:
    one = shown(capsys, partition(0, 11), dead_letters={"decode": 1})
    assert "1 partition, lag 1 offset\n" in one
    assert "1 dead letter: decode\n" in one
    two = shown(capsys, partition(0, 1500), partition(1, 10), dead_letters={"decode": 2})
    assert "2 partitions, lag 1 490 offsets\n" in two
    assert "2 dead letters: decode\n" in two


def test_offsets_that_the_broker_dropped_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert "partition 3: 1 offset lost, dropped by the broker" in shown(capsys, partition(3, 20, low=11))


def test_a_stream_without_a_batch_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing has been read yet" in shown(capsys)


def test_an_unknown_lag_is_not_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert "1 partition, lag unknown\n" in shown(capsys, PartitionStatus(0, 10, None, None), reachable=False)
