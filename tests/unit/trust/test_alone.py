"""One command that writes is at a table at a time, whichever host runs it."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from ch_sink.errors import StreamFailed
from ch_sink.memory import MemoryLedger
from ch_sink.ports import Command
from ch_sink.stream.claims import born
from ch_sink.trust.alone import Commands

REMEDY = "ALTER TABLE l DELETE WHERE entry = 'command'"


@pytest.fixture
def commands() -> Callable[[], Commands]:
    """Those of one more process at the table."""
    book = MemoryLedger("s")
    return lambda: Commands(MemoryLedger("s", beside=book), "shop.orders", REMEDY)


@contextmanager
def on(host: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(socket, "gethostname", lambda: host)
        yield


def test_a_second_command_is_refused_by_name_until_the_first_has_ended(commands: Callable[[], Commands]) -> None:
    with commands().alone("resync") as still:
        for _ in range(2):  # the one that was refused holds up none
            with pytest.raises(StreamFailed, match=rf"resync writes to shop\.orders since .* process {os.getpid()} on"):
                commands().alone("repair").__enter__()
        with pytest.raises(StreamFailed):
            commands().expect_none()
        still()
    commands().expect_none()
    with commands().alone("repair") as still:
        still()


def test_a_command_that_fails_holds_up_none(commands: Callable[[], Commands]) -> None:
    with pytest.raises(ZeroDivisionError), commands().alone("resync"):
        raise ZeroDivisionError
    commands().expect_none()


def test_a_command_of_a_dead_process_has_ended_on_its_own_host_only(
    commands: Callable[[], Commands], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = commands()
    sleeper = "import time; print(1, flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", sleeper], stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            left = Command("x", "resync", socket.gethostname(), child.pid, born(child.pid), "yesterday")
            one.ledger.note(left)
            with pytest.raises(StreamFailed, match=f"since yesterday: process {child.pid}") as caught:
                one.expect_none()
            assert caught.value.hint == "Wait until it ends, or stop it."
        finally:
            child.kill()
    one.expect_none()
    with on("another", monkeypatch), pytest.raises(StreamFailed, match="since yesterday") as caught:
        commands().expect_none()
    assert REMEDY in (caught.value.hint or "")


def test_a_command_whose_end_its_process_could_not_record_has_ended(commands: Callable[[], Commands]) -> None:
    me = os.getpid()
    commands().ledger.note(Command("x", "resync", socket.gethostname(), me, born(me), "yesterday"))
    commands().expect_none()


def test_of_two_that_begin_at_the_same_moment_none_goes_on_beside_the_other(
    commands: Callable[[], Commands], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one begins between the first one's entry and its look."""
    first, second = commands(), commands()
    note, going = first.ledger.note, []

    def slow(*facts: Command) -> None:
        note(*facts)
        if not facts[0].ended:
            with pytest.raises(StreamFailed), on("another", monkeypatch), second.alone("repair"):
                going.append("second")

    monkeypatch.setattr(first.ledger, "note", slow)
    with first.alone("resync"):
        going.append("first")
    assert going == ["first"]


def test_a_command_that_was_ended_by_hand_may_write_no_more(commands: Callable[[], Commands]) -> None:
    one = commands()
    with one.alone("resync") as still:
        still()
        assert isinstance(one.ledger, MemoryLedger)
        one.ledger._book.facts.clear()
        with commands().alone("repair"), pytest.raises(StreamFailed, match="another command may"):
            still()
