"""Two comparisons of one table at a time, from two hosts: neither knows whether the other one is alive."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from ch_sink.clickhouse import Client
from ch_sink.errors import StreamFailed
from ch_sink.trust.repair import repaired
from ch_sink.trust.shadow import shadow_of, shadow_tables
from ch_sink.trust.subject import Options
from ch_sink.trust.verify import verified
from tests.support.hand import insert
from tests.support.hand_commands import Hand, hand
from tests.support.hand_steps import lose

pytestmark = pytest.mark.integration

Begin = Callable[[Hand], None]


@pytest.fixture
def begin(client: Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    """Another host begins to compare the table."""
    with ExitStack() as other:

        def begun(it: Hand) -> None:
            with monkeypatch.context() as elsewhere:
                elsewhere.setattr(socket, "gethostname", lambda: "elsewhere")
                subject = it.subject
                shape = shadow_of(subject.table, subject.database, subject.key, subject.columns)
                other.enter_context(shadow_tables(client, shape))

        yield begun


def test_a_comparison_whose_rows_another_one_has_replaced_says_nothing(
    client: Client, database: str, begin: Begin
) -> None:
    it = hand(client, database, "replacing", [insert(1, "a", 10), insert(2, "b", 20)])
    it.read_all()

    def say(text: str) -> None:
        if text == "comparing checksums":
            begin(it)

    with pytest.raises(StreamFailed, match="another comparison"), verified(it.subject, Options(patience=0), say):
        pass


def test_a_repair_whose_rows_another_comparison_has_replaced_writes_nothing(
    client: Client, database: str, begin: Begin
) -> None:
    it = hand(client, database, "replacing", [insert(1, "a", 10), insert(2, "b", 20)])
    it.read_all()
    lose(it, 1)

    def say(text: str) -> None:
        if text.startswith("writing"):
            begin(it)

    with pytest.raises(StreamFailed, match="another comparison"):
        repaired(it.subject, Options(patience=0), apply=True, say=say)
    assert it.view() == [(2, "b")]
