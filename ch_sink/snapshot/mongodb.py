"""MongoDB: documents in the order of their ``_id``, as canonical Extended JSON. There are no positions to compare."""

from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import bson
from bson import CodecOptions, DatetimeConversion, Int64, json_util
from bson.json_util import CANONICAL_JSON_OPTIONS
from pymongo import ASCENDING, MongoClient
from pymongo.collection import Collection
from pymongo.errors import PyMongoError
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference

from ch_sink.errors import SourceError
from ch_sink.snapshot.reader import NO_PROOF, Part, SourceAddress, Value

Document = Mapping[str, Any]
_ID = "_id"
_BY_ID = [(_ID, ASCENDING)]
_SAMPLED = 100
"""Sampled keys for each part: the more, the more alike the parts."""
# Dates beyond Python's years stay numbers, and UUIDs the bytes that they are.
_CODEC: CodecOptions[dict[str, Any]] = CodecOptions(
    document_class=dict, tz_aware=True, datetime_conversion=DatetimeConversion.DATETIME_MS
)


class MongoReader:
    """One collection, over one client.

    Documents are read from the primary, as a majority of its members has them, like those that change streams tell of.
    Nothing is locked: an ``_id`` never changes, so in its order every document is read once, at some moment between the
    beginning and the end.
    """

    holds_documents = True

    def __init__(self, address: SourceAddress) -> None:
        self.address = address
        options: Any = {"username": address.username, "password": address.password} if address.username else {}
        if "serverselectiontimeoutms=" not in address.url.lower():
            options["serverSelectionTimeoutMS"] = 10_000
        try:
            self._client: MongoClient[dict[str, Any]] = MongoClient(address.url, appname="ch_sink", **options)
        except (PyMongoError, ValueError, TypeError) as error:  # an option of the URL
            raise self._failure("refuses the login", error) from None
        try:
            # Clients connect on their own time, and log in when they are first asked for something.
            self._client.get_database(address.schema).command("ping")
        except PyMongoError as error:
            self._client.close()
            raise self._failure("refuses the login", error) from None

    @property
    def _collection(self) -> Collection[dict[str, Any]]:
        return self._client.get_database(self.address.schema).get_collection(
            self.address.table, _CODEC, ReadPreference.PRIMARY, read_concern=ReadConcern("majority")
        )

    def position(self) -> int:
        """Versions are Kafka's offsets, which say nothing of the source."""
        return NO_PROOF

    def settled(self, patience: float) -> int:
        return 0

    def columns(self) -> dict[str, str]:
        """The type of ``_id`` is ``bigint`` if both ends of the collection are whole numbers."""
        name = self.address.table
        try:
            there = self._client.get_database(self.address.schema).list_collection_names(
                filter={"name": name}, authorizedCollections=True
            )
            ends = [self._end(order) for order in (ASCENDING, -ASCENDING)] if there else []
        except PyMongoError as error:
            raise self._failure("cannot be described", error) from None
        if not there:
            raise self._failure("cannot be described", "it does not exist, or the user may not see it")
        return {_ID: "bigint" if all(type(end) in (int, Int64) for end in ends) else "bson"}

    def _end(self, order: int) -> Any:
        found = self._collection.find_one({}, {_ID: 1}, sort=[(_ID, order)])
        return None if found is None else found[_ID]

    def estimate(self) -> int:
        try:
            return self._collection.estimated_document_count()
        except PyMongoError as error:
            raise self._failure("cannot be described", error) from None

    def parts(self, many: int) -> list[Part]:
        """Ranges of ``_id``, between the quantiles of a sample."""
        steps = [{"$sample": {"size": many * _SAMPLED}}, {"$project": {_ID: 1}}, {"$sort": {_ID: 1}}]
        try:
            seen = [found[_ID] for found in self._collection.aggregate(steps)]
        except PyMongoError as error:
            raise self._failure("cannot be divided", error) from None
        bounds = [seen[len(seen) * n // many] for n in range(1, many)] if len(seen) >= many else []
        # The sample may have a document twice.
        bounds = [bound for n, bound in enumerate(bounds) if n == 0 or bound != bounds[n - 1]]
        starts, ends = [{}, *({"min": b} for b in bounds)], [*({"max": b} for b in bounds), {}]
        return [_part({**low, **end}) for low, end in zip(starts, ends, strict=True)]

    def part(self, part: Part, names: Sequence[str], size: int) -> Iterator[list[tuple[Value, ...]]]:
        return self.rows(names, size, part.condition)

    def between(self, column: str, low: int | None, end: int | None) -> Part:
        limits = (("min", low), ("max", end))
        return _part({name: Int64(limit) for name, limit in limits if limit is not None})

    def rows(self, names: Sequence[str], size: int, condition: str = "") -> Iterator[list[tuple[Value, ...]]]:
        limits = bson.decode(b64decode(condition), _CODEC) if condition else {}
        try:
            with self._collection.find({}, _projection(names), hint=_BY_ID, sort=_BY_ID, batch_size=size) as found:
                # Bounds of the index compare keys of all types; a query's $gte leaves out those of another type.
                if "min" in limits:
                    found.min([(_ID, limits["min"])])
                if "max" in limits:
                    found.max([(_ID, limits["max"])])
                batch: list[tuple[Value, ...]] = []
                for document in found:
                    batch.append(tuple(_text(document, name) for name in names))
                    if len(batch) >= size:
                        yield batch
                        batch = []
                if batch:
                    yield batch
        except PyMongoError as error:
            raise self._failure("cannot be read", error) from None

    def close(self) -> None:
        self._client.close()

    def _failure(self, what: str, error: Exception | str) -> SourceError:
        # The driver describes an unavailable server at length; a refusal comes with its whole answer.
        said = str(error).split(", Timeout:")[0].split(", full error:")[0]
        return SourceError(
            f"source {self.address.shown} {what}: {said}",
            hint="Check source.url (authSource too), the user, and its right to read the collection.",
        )


def _projection(names: Sequence[str]) -> dict[str, int] | None:
    """The fields that are asked for; all of them where one cannot be named, as in ``a.b`` or ``$a``."""
    if any(not name or "." in name or name.startswith("$") for name in names):
        return None
    return {_ID: 1, **dict.fromkeys(names, 1)}


def _text(document: Document, name: str) -> str | None:
    if name and name not in document:
        return None
    return json_util.dumps(document[name] if name else document, json_options=CANONICAL_JSON_OPTIONS)


def _part(limits: Document) -> Part:
    return Part(b64encode(bson.encode(limits)).decode() if limits else "")
