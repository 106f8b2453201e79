"""Several streams in one executor: rounds in common, failures apart."""

from collections.abc import Sequence
from typing import Any

import pytest

from ch_sink.errors import StreamFailed
from ch_sink.stream.rounds import Intend, Record, Rounds, run_one, run_together


def stream(name: str, rounds: int, log: list[Any], fails: bool = False) -> Rounds:
    for number in range(rounds):
        found = yield [f"{name}{number}.{task}" for task in range(2)]  # type: ignore[misc]
        log.append((name, found))
    if fails:
        raise StreamFailed(f"{name} is broken")


def echo(calls: list[Any]) -> Any:
    def execute(tasks: Sequence[Any]) -> list[Any]:
        calls.append(list(tasks))
        return [f"done {task}" for task in tasks]

    return execute


def test_streams_that_are_ready_share_a_call_and_get_their_own_results() -> None:
    calls: list[Any] = []
    log: list[Any] = []
    assert run_together({"a": stream("a", 2, log), "b": stream("b", 1, log)}, echo(calls)) == {}
    assert calls == [["a0.0", "a0.1", "b0.0", "b0.1"], ["a1.0", "a1.1"]]
    assert log[1] == ("b", ["done b0.0", "done b0.1"])
    assert log[2] == ("a", ["done a1.0", "done a1.1"])


def test_a_stream_that_fails_does_not_end_the_others() -> None:
    calls: list[Any] = []
    log: list[Any] = []
    failed = run_together({"a": stream("a", 1, log, fails=True), "b": stream("b", 3, log)}, echo(calls))
    assert {name: str(error) for name, error in failed.items()} == {"a": "a is broken"}
    assert [name for name, _ in log].count("b") == 3


def test_one_stream_raises_its_error() -> None:
    with pytest.raises(StreamFailed, match="a is broken"):
        run_one(stream("a", 1, [], fails=True), echo([]))


def test_an_executor_that_fails_ends_all_streams() -> None:
    log: list[Any] = []

    def execute(tasks: Sequence[Any]) -> list[Any]:
        raise RuntimeError("no executor")

    rounds = stream("a", 1, log)
    with pytest.raises(RuntimeError, match="no executor"):
        run_together({"a": rounds}, execute)
    assert log == []
    with pytest.raises(StopIteration):
        next(rounds)


def test_streams_share_a_write_and_one_that_is_refused_raises_where_it_wrote() -> None:
    """Nobody's tasks begin before the writes of all are done."""
    log: list[Any] = []

    def writer(name: str) -> Rounds:
        for number in range(2):
            intents = yield Intend(name, [number])  # type: ignore[arg-type,list-item]
            log.append(("task", name, intents))
            yield [f"{name}{number}"]  # type: ignore[misc]
            yield Record(name, [number])  # type: ignore[arg-type,list-item]

    def write(writes: Sequence[Any]) -> list[Any]:
        log.append([(type(w).__name__, w.ledger) for w in writes])
        refused = StreamFailed("displaced")
        return [refused if w.ledger == "b" and isinstance(w, Record) else f"for {w.ledger}" for w in writes]

    failed = run_together({n: writer(n) for n in "ab"}, echo([]), write=write)
    assert {name: str(error) for name, error in failed.items()} == {"b": "displaced"}
    assert log == [
        [("Intend", "a"), ("Intend", "b")],
        ("task", "a", "for a"),
        ("task", "b", "for b"),
        [("Record", "a"), ("Record", "b")],
        [("Intend", "a")],
        ("task", "a", "for a"),
        [("Record", "a")],
    ]
