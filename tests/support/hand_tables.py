"""Tables of each engine for hand-written events, and the events in a few words."""

from collections.abc import Callable
from typing import Any

import pytest

from ch_sink.clickhouse import Client
from ch_sink.model.policy import Policy
from tests.support.hand import Event, HandFed, mysql

__all__ = [
    "APPEND",
    "COLLAPSING",
    "ENGINES",
    "OWN",
    "WINDOW",
    "Make",
    "delete",
    "each_collapsing",
    "each_engine",
    "insert",
    "key",
    "make",
    "row",
    "signs",
    "update",
]

_WINDOW = "SETTINGS non_replicated_deduplication_window = "
WINDOW = f"{_WINDOW}1000"
OWN = {
    "replacing": ("ReplacingMergeTree(_version, _is_deleted)", "_version UInt128, _is_deleted UInt8"),
    "sign": ("ReplacingMergeTree(_version)", "_version UInt128, _sign Int8"),
    "collapsing": ("CollapsingMergeTree(_sign)", "_sign Int8, _version UInt128"),
    "versioned": ("VersionedCollapsingMergeTree(_sign, _version)", "_sign Int8, _version UInt128"),
}
ENGINES = tuple(OWN)
"""The engines that hold a table's current state."""
COLLAPSING = ("collapsing", "versioned")
APPEND = ("MergeTree", "_op LowCardinality(String), _sign Int8, _version UInt128, _source_time DateTime64(3)")
Make = Callable[..., HandFed]


@pytest.fixture
def make(client: Client, database: str, own_tables: str) -> Make:
    """A table (id, v) of an engine or ``append``; ``more`` columns, ORDER BY and PARTITION BY as wanted."""

    def made(
        engine: str,
        *,
        more: str = "",
        order: str = "id",
        tail: str = "",
        ttl: str = "",
        window: int = 1000,
        policy: Policy | None = None,
    ) -> HandFed:
        clause, own = OWN.get(engine, APPEND)
        columns = f"id Int64, v Nullable(String){', ' + more if more else ''}"
        ddl = f"({columns}, {own}) ENGINE = {clause} {tail} ORDER BY ({order}) {ttl} {_WINDOW}{window}"
        return HandFed(client, database, own_tables, ddl, ("id",), policy)

    return made


def row(id_: int, v: str | None, **more: Any) -> dict[str, Any]:
    return {"id": id_, "v": v, **more}


def key(id_: int) -> dict[str, int]:
    return {"id": id_}


def insert(id_: int, v: str | None, pos: int, **more: Any) -> Event:
    return mysql("c", key(id_), None, row(id_, v, **more), pos)


def update(before: dict[str, Any], after: dict[str, Any], pos: int, **source: Any) -> Event:
    return mysql("u", key(after["id"]), before, after, pos, **source)


def delete(before: dict[str, Any], pos: int) -> Event:
    return mysql("d", key(before["id"]), before, None, pos)


def signs(fed: HandFed) -> list[tuple[Any, ...]]:
    return fed.query("SELECT id, toInt64(sum(_sign)) FROM {t} GROUP BY id ORDER BY id")


each_engine = pytest.mark.parametrize("engine", ENGINES)
each_collapsing = pytest.mark.parametrize("engine", COLLAPSING)
