"""What an intent's fingerprint tells apart."""

import pytest

from ch_sink.config import Config
from ch_sink.stream.fingerprint import fingerprint
from ch_sink.types.column import Column
from ch_sink.wiring.streams import stream_settings
from tests.support.decoding import replacing

COLUMNS = (Column("id", "Int32"), Column("name", "String"))


def mark(table: str = "String", **more: object) -> str:
    """The fingerprint under which a job of this configuration plans its ranges."""
    place = {"url": "http://h:8123", "table": "t"}
    given = {"kafka": {"topic": "t", "bootstrap.servers": "h:1"}, "clickhouse": place, **more}
    settings = stream_settings(Config.model_validate(given))
    columns = (COLUMNS[0], Column("name", table))
    return fingerprint(settings.policy, replacing(columns, ("id",)), settings.source_table)


def test_a_setting_that_decides_nothing_about_rows_changes_nothing() -> None:
    assert mark() == mark(chunk_offsets=7)


@pytest.mark.parametrize(
    "changed",
    [{"source_table": "shop.orders"}, {"out_of_range": "clamp"}, {"table": "LowCardinality(String)"}],
    ids=lambda changed: next(iter(changed)),
)
def test_whatever_gives_other_rows_of_the_same_range_changes_it(changed: dict[str, str]) -> None:
    assert mark(**changed) != mark()
