"""The SingleStore connector's sample events, put together to a stream."""

from typing import Any

from tests.model.shapes import Column, Layout, TableShape
from tests.support.documents import Stream, sample


def example(key: str, clickhouse: str) -> Layout:
    """``CREATE TABLE example (a INT)``: no primary key, so that the row's internal id is the key."""
    columns = (Column(key, "string" if clickhouse == "String" else "int64", False, clickhouse),)
    return Layout("example", TableShape("example", (*columns, Column("a", "int32", False, "Int32")), (key,)), (key,))


def in_partitions(layout: Layout) -> Layout:
    """Partitioned by a column outside the key: deletes and updates have to find the row's old place."""
    return Layout("example by a", layout.table, layout.order_by, "a % 2")


SAMPLE_ID = "100000000000000600000007"


OTHER_ID, THIRD_ID = "100000000000000600000008", "100000000000000600000009"


def singlestore(layout: Layout, ids: tuple[Any, Any, Any], name: str, *, with_id: bool) -> Stream:
    """Snapshot sent as creates, the three samples, other rows, a snapshot that runs again after a stale offset."""
    stream = Stream(layout, "singlestore")

    def key(of: Any) -> dict[str, Any]:
        document = sample("singlestore", "key")
        field = {**document["schema"]["fields"][0], "field": name}
        return {"schema": {**document["schema"], "fields": [field]}, "payload": {name: of}}

    def event(kind: str, of: Any, mark: Any, **after: int) -> dict[str, Any]:
        payload = dict(sample("singlestore", kind)["payload"])
        payload["source"] = payload["source"] | {"snapshot": mark}
        if after:
            payload["after"] = after | ({name: of} if with_id else {})
        return {"schema": None, "payload": payload}

    one, two, three = ids
    stream.send(key(two), event("create", two, "true", a=5))
    stream.send(key(three), event("create", three, "true", a=6))
    stream.send(key(one), event("create", one, "true", a=33))
    stream.send(key(one), event("update", one, "false", a=22))
    stream.send(key(two), event("update", two, "false", a=8))
    stream.send(key(three), event("delete", three, "false"))
    stream.send(key(three), None)
    # The connector's offset became stale: its snapshot runs again, rows that changed meanwhile included.
    stream.send(key(one), event("create", one, "true", a=22))
    stream.send(key(two), event("create", two, True, a=9))
    stream.send(key(one), event("delete", one, False))
    stream.send(key(one), None)
    return stream
