"""The reader of MongoDB with its real driver, over a server that has the protocol and documents in memory.

No real MongoDB was at hand: these tests have never been run against one.
"""

import datetime
from base64 import b64decode
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import bson
import pytest
from bson import Binary, Code, Decimal128, Int64, MaxKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS

from ch_sink.errors import SourceError
from ch_sink.snapshot import DivisibleReader, DocumentReader, SourceAddress, open_source
from ch_sink.snapshot.mongodb import MongoReader
from ch_sink.snapshot.reader import NO_PROOF
from tests.support.mongo_server import MongoServer, Refused

SAMPLE: dict[str, Any] = {
    "_id": 1, "long": Int64(7), "double": 10.0, "nan": float("nan"), "decimal": Decimal128("1.10"), "none": None,
    "date": DatetimeMS(253_402_300_800_000), "binary": Binary(b"\0\1", 0), "uuid": Binary(bytes(16), 4),
    "oid": ObjectId("596e275826f08b2730779e1f"), "regex": Regex("^a", "i"), "code": Code("x", {"y": 1}),
    "stamp": Timestamp(5, 6), "most": MaxKey(), "inner": {"b": [1, {"c": "ü"}]}, "odd.name": 5, "$odd": 6,
}  # fmt: skip
MIXED = [*range(-30, 30), 2.5, *(f"k{n}" for n in range(40)), {"a": 1}, ObjectId(bytes(12)), Binary(b"1" * 16, 4), True]


@pytest.fixture
def server() -> Iterator[MongoServer]:
    made = MongoServer(
        {
            "inventory.customers": [SAMPLE, {"_id": 0}],
            "inventory.mixed.keys": [{"_id": key, "n": n} for n, key in enumerate(MIXED)],
            "inventory.numbers": [{"_id": Int64(n) if n % 2 else n, "n": n} for n in range(1000)],
            "inventory.empty": [],
        }
    )
    with closing(made):
        yield made


def opened(server: MongoServer, table: str, **changes: Any) -> "closing[MongoReader]":
    url = f"mongodb://127.0.0.1:{server.port}/?serverSelectionTimeoutMS=300"
    made = SourceAddress("mongodb", "127.0.0.1", server.port, "", "inventory", table, "", "", url)
    reader = open_source(replace(made, **changes))
    assert isinstance(reader, MongoReader)
    assert isinstance(reader, DivisibleReader)
    assert isinstance(reader, DocumentReader)
    return closing(reader)


def test_fields_and_documents_are_read_as_canonical_extended_json(server: MongoServer) -> None:
    names = [name for name in SAMPLE if "odd" not in name]
    with opened(server, "customers") as reader:
        [first, row] = [row for batch in reader.rows(names, 1) for row in batch]
        texts = dict(zip(names, row, strict=True))
        assert first == ('{"$numberInt": "0"}', *[None] * (len(names) - 1))
        assert texts["none"] == "null"
        assert texts["date"] == '{"$date": {"$numberLong": "253402300800000"}}'
        assert texts["uuid"] == '{"$binary": {"base64": "AAAAAAAAAAAAAAAAAAAAAA==", "subType": "04"}}'
        assert (texts["long"], texts["double"]) == ('{"$numberLong": "7"}', '{"$numberDouble": "10.0"}')
        asked = next(command for command in server.seen if "find" in command)
        assert (asked["hint"], asked["sort"], asked["readConcern"]) == ({"_id": 1}, {"_id": 1}, {"level": "majority"})
        assert set(asked["projection"]) == set(names)
        for odd in ([""], ["odd.name"], ["$odd"]):
            list(reader.rows(odd, 10))
            assert "projection" not in server.seen[-1]
        [_, (whole, part)] = [row for batch in reader.rows(["", "odd.name"], 10) for row in batch]
        assert part == '{"$numberInt": "5"}'
        assert '"inner": {"b": [{"$numberInt": "1"}, {"c": "\\u00fc"}]}, "odd.name"' in str(whole)


@pytest.mark.parametrize(("collection", "many"), [("mixed.keys", 7), ("numbers", 4), ("numbers", 1), ("empty", 5)])
def test_parts_hold_every_document_once(server: MongoServer, collection: str, many: int) -> None:
    there = server.collections[f"inventory.{collection}"]
    with opened(server, collection) as reader:
        assert reader.estimate() == len(there)
        parts = reader.parts(many)
        assert len(parts) == (many if there else 1)
        found = [row[0] for part in parts for batch in reader.part(part, ["n"], 50) for row in batch]
    assert sorted(found) == sorted(f'{{"$numberInt": "{d["n"]}"}}' for d in there)


def test_a_part_travels_with_keys_of_any_type(server: MongoServer) -> None:
    with opened(server, "mixed.keys") as reader:
        limits = [bson.decode(b64decode(part.condition)) for part in reader.parts(60)]
        assert limits[0].keys() == {"max"}
        assert limits[-1].keys() == {"min"}
        assert {type(limit["min"]) for limit in limits[1:]} >= {int, str}


def test_ranges_of_whole_numbers_are_a_part(server: MongoServer) -> None:
    with opened(server, "numbers") as reader:
        assert reader.columns() == {"_id": "bigint"}
        # A user without the right to list all collections may list its own, by name.
        asked = next(command for command in server.seen if "listCollections" in command)
        assert (asked["nameOnly"], asked["authorizedCollections"]) == (True, True)
        part = reader.between("_id", 5, 8)
        assert [row[0] for batch in reader.part(part, ["n"], 2) for row in batch] == [
            f'{{"$numberInt": "{n}"}}' for n in (5, 6, 7)
        ]
        assert reader.between("_id", None, None).condition == ""
    for other in ("mixed.keys", "empty"):
        with opened(server, other) as reader:
            assert reader.columns() == {"_id": "bson"}


def test_there_is_no_position_to_compare(server: MongoServer) -> None:
    with opened(server, "customers") as reader:
        assert (reader.position(), reader.settled(0)) == (NO_PROOF, 0)


def test_what_is_wrong_is_said_without_the_password(server: MongoServer) -> None:
    away = "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=300"
    for changes, said in (
        ({"url": away}, "refuses the login: 127.0.0.1:1: [Errno 111] Connection refused"),
        ({"username": "debezium", "password": "hunter2"}, "refuses the login: Authentication failed."),
        (
            {"url": "mongodb://127.0.0.1:1,127.0.0.1:2/?directConnection=true"},
            "refuses the login: Cannot specify",
        ),
        ({"table": "nowhere"}, "cannot be described: it does not exist, or the user may not see it"),
    ):
        with pytest.raises(SourceError) as refused, opened(server, **{"table": "customers", **changes}) as reader:
            reader.columns()
        assert said in refused.value.message
        assert "hunter2" not in str(refused.value)
        assert "Topology" not in refused.value.message
    server.refused["find"] = Refused(13, "not authorized on inventory to execute command")
    with pytest.raises(SourceError, match="cannot be read: not authorized"), opened(server, "customers") as reader:
        list(reader.rows(["n"], 10))


def test_dates_of_every_year_are_read(server: MongoServer) -> None:
    dates = [datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC), DatetimeMS(-(2**60)), DatetimeMS(2**60)]
    server.collections["inventory.dates"] = [{"_id": n, "at": at} for n, at in enumerate(dates)]
    with opened(server, "dates") as reader:
        found = [row[0] for batch in reader.rows(["at"], 10) for row in batch]
    assert found == [f'{{"$date": {{"$numberLong": "{n}"}}}}' for n in (1_577_836_800_000, -(2**60), 2**60)]
