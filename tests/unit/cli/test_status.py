"""What ``ch_sink status`` prints."""

import pytest

from ch_sink.cli.output import Output
from ch_sink.cli.status import show_all, show_one
from ch_sink.observe.stream import PartitionStatus, Standing, StreamStatus, worst_first
from tests.support.views import counts_of


def partition(number: int, high: int, low: int = 0) -> PartitionStatus:
    return PartitionStatus(number, 10, low, high)


def shown(capsys: pytest.CaptureFixture[str], *partitions: PartitionStatus, **more: object) -> str:
    show_one(Output(), StreamStatus("s", "t", "id", "db.t", partitions, **more))  # type: ignore[arg-type]
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


def stream(name: str, state: str, lag: int | None = 0, error: str = "", remedy: str = "") -> StreamStatus:
    parts = (PartitionStatus(0, 10, 0, None if lag is None else 10 + lag, counts_of(rows=1000)),)
    standing = Standing(state, 1_700_000_000.0 if error else 0.0, error, remedy)  # type: ignore[arg-type]
    return StreamStatus(name, name, "id", f"db.{name}", parts, reachable=lag is not None, standing=standing)


MANY = [
    stream("well", "running", 3),
    stream("slow", "running", 5000),
    stream("off", "idle"),
    stream("broken", "stopped", 40, "column 'x' is unknown", "ALTER TABLE …, then `ch_sink resume`"),
    stream("away", "waiting", None, "ClickHouse does not answer"),
    stream("held", "paused", 9),
]


def test_the_worst_comes_first() -> None:
    assert [s.stream for s in worst_first(MANY)] == ["broken", "away", "held", "slow", "well", "off"]


def test_many_streams_have_one_row_each_and_what_is_wrong_below(capsys: pytest.CaptureFixture[str]) -> None:
    show_all(Output(), worst_first(MANY))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[1:7]] == [
        ["broken", "stopped", "40"],
        ["away", "waiting", "–"],
        ["held", "paused", "9"],
        ["slow", "running", "5"],
        ["well", "running", "3"],
        ["off", "idle", "0"],
    ]
    assert lines[8:11] == [
        "broken",
        "  stopped since 2023-11-14 22:13:20: column 'x' is unknown",
        "  next: ALTER TABLE …, then `ch_sink resume`",
    ]
    assert lines[12:14] == ["away", "  waiting since 2023-11-14 22:13:20: ClickHouse does not answer"]
    totals = "6 streams: 1 stopped, 1 waiting, 1 paused, 2 running, 1 idle; lag 5 052 and 1 unknown lag, 6 000 rows"
    assert lines[-1] == totals


def test_the_document_has_what_checks_rely_on() -> None:
    seen = MANY[3].as_json()
    assert {key: seen[key] for key in ("stream", "topic", "table", "state", "lag", "error", "next")} == {
        "stream": "broken",
        "topic": "broken",
        "table": "db.broken",
        "state": "stopped",
        "lag": 40,
        "error": "column 'x' is unknown",
        "next": "ALTER TABLE …, then `ch_sink resume`",
    }
    assert [p["partition"] for p in seen["partitions"]] == [0]
    assert (MANY[0].as_json()["error"], MANY[0].as_json()["next"]) == (None, None)
