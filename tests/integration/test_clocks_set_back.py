"""Times in a zone whose clocks are set back: two moments of that hour have one text."""

from typing import Any

import pytest

from ch_sink.clickhouse import Client
from ch_sink.model.policy import policy_of
from ch_sink.trust.repair import repaired
from ch_sink.trust.subject import Options
from tests.support.hand import OWN, Event, insert
from tests.support.hand_commands import Hand, each_of, made

pytestmark = pytest.mark.integration

SUMMER, WINTER = 1_698_539_400_000, 1_698_543_000_000
"""Half past two in Berlin on 29 October 2023, and an hour later."""
KINDS = ("Nullable(DateTime64(3, 'Europe/Berlin'))", "Array(DateTime('Europe/Berlin'))")


def table(client: Client, database: str, columns: str, events: list[Event], **policy: Any) -> Hand:
    it = made(client, database, (OWN["replacing"][0], columns), policy_of(on_bad_record="fail", **policy), [events])
    it.read_all()
    return it


@each_of("kind", KINDS, *KINDS)
def test_a_value_that_is_an_hour_off_is_found(client: Client, database: str, kind: str) -> None:
    sent = [SUMMER] if kind.startswith("Array") else SUMMER
    it = table(client, database, f"w {kind}, {OWN['replacing'][1]}", [insert(1, "a", 10, w=sent)])
    assert it.verify() == (0, 0, 0)
    later = "arrayMap(t -> t + 3600, w)" if kind.startswith("Array") else "w + 3600"
    client.command(f"ALTER TABLE {database}.t UPDATE w = {later} WHERE 1 SETTINGS mutations_sync = 2")
    assert it.verify() == (0, 0, 1)


@each_of("kind", ["DateTime('Europe/Berlin')", "DateTime64(3, 'Europe/Berlin')"], "DateTime64(3, 'Europe/Berlin')")
def test_a_row_that_was_stored_then_is_repaired(client: Client, database: str, kind: str) -> None:
    event = insert(1, "a", 10)
    assert event.value is not None
    events = [Event(event.key, {**event.value, "source": {**event.value["source"], "ts_ms": WINTER}})]
    columns = f"_version {kind}, _is_deleted UInt8"
    it = table(client, database, columns, events, version_strategy="source_time")
    client.command(f"INSERT INTO {database}.t SELECT * REPLACE('x' AS v) FROM {database}.t")
    assert it.view() == [(1, "x")]
    assert repaired(it.subject, Options(patience=0), apply=True).left == 0
    assert it.view() == [(1, "a")]
