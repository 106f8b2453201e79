"""A server that speaks MongoDB's protocol (OP_MSG) with the real driver and has collections in memory.

It knows the commands of the reader and of a connection, and no others; orders of ``_id`` are MongoDB's for the types
of `RANKS`. Without a login all is allowed, and whoever logs in is refused. It is not a MongoDB.
"""

import random
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import bson
from bson import Binary, CodecOptions, DatetimeConversion, Int64, ObjectId

from tests.support.tds_server import StandIn, exactly

Doc = dict[str, Any]
_CODEC: CodecOptions[Doc] = CodecOptions(document_class=dict, datetime_conversion=DatetimeConversion.DATETIME_MS)
RANKS: tuple[tuple[int, type | tuple[type, ...]], ...] = (
    (7, bool), (1, (int, float)), (2, str), (3, dict), (4, list), (6, ObjectId), (5, (Binary, bytes)),
)  # fmt: skip
"""Types in the order in which MongoDB compares values of different ones."""


@dataclass(frozen=True)
class Refused(Exception):
    """An error of the server."""

    code: int
    text: str


@dataclass
class MongoServer(StandIn):
    """Listens on a free port of 127.0.0.1 until it is closed."""

    collections: dict[str, Sequence[Doc]] = field(default_factory=dict)
    """By full name: ``inventory.customers``."""
    refused: dict[str, Refused] = field(default_factory=dict)
    """Commands that this user may not use."""
    seen: list[Doc] = field(default_factory=list)
    then: Callable[[], object] | None = None
    """What happens, once, after documents were read in parts or as a whole."""

    def __post_init__(self) -> None:
        self._cursors: dict[int, list[Doc]] = {}
        self.listen()

    def serve(self, client: socket.socket) -> None:
        while True:
            size, number, _, code = struct.unpack("<iiii", exactly(client, 16))
            body = exactly(client, size - 16)
            if code == 2013:
                answer = b"\0\0\0\0\0" + bson.encode(self._answered(bson.decode(body[5:], _CODEC)))
            else:  # the first question of a connection, OP_QUERY
                at = body.index(b"\0", 4) + 9
                code, answer = (
                    1,
                    struct.pack("<iqii", 8, 0, 0, 1) + bson.encode(self._answered(bson.decode(body[at:], _CODEC))),
                )
            client.sendall(struct.pack("<iiii", 16 + len(answer), 1, number, code) + answer)

    def _answered(self, command: Doc) -> Doc:
        name = next(iter(command))
        self.seen.append(command)
        try:
            if name in self.refused:
                raise self.refused[name]
            return {"ok": 1.0, **self._commands().get(name, _unknown)(command)}
        except Refused as refused:
            return {"ok": 0.0, "errmsg": refused.text, "code": refused.code, "codeName": "Refused"}

    def _commands(self) -> Mapping[str, Callable[[Doc], Doc]]:
        return {
            **dict.fromkeys(("hello", "ismaster", "isMaster"), self._hello),
            **dict.fromkeys(("ping", "endSessions", "killCursors"), lambda command: {}),
            "saslStart": self._login,
            "listCollections": self._list,
            "count": lambda command: {"n": len(self._all(command["count"], command))},
            "aggregate": self._sample,
            "find": self._find,
            "getMore": self._more,
        }

    def _hello(self, command: Doc) -> Doc:
        here = f"127.0.0.1:{self.port}"
        made = {
            "helloOk": True, "ismaster": True, "isWritablePrimary": True, "setName": "rs0", "hosts": [here], "me": here,
            "primary": here, "maxWireVersion": 21, "minWireVersion": 0, "maxBsonObjectSize": 16 << 20,
            "maxMessageSizeBytes": 48 << 20, "maxWriteBatchSize": 100_000, "logicalSessionTimeoutMinutes": 30,
            "connectionId": 1,
        }  # fmt: skip
        return made | ({"saslSupportedMechs": ["SCRAM-SHA-256"]} if "saslSupportedMechs" in command else {})

    def _login(self, command: Doc) -> Doc:
        raise Refused(18, "Authentication failed.")

    def _list(self, command: Doc) -> Doc:
        wanted = command.get("filter", {}).get("name")
        names = [full.partition(".")[2] for full in self.collections if full.startswith(command["$db"] + ".")]
        found = [{"name": n, "type": "collection"} for n in names if wanted in (None, n)]
        return {"cursor": {"id": Int64(0), "ns": f"{command['$db']}.$cmd.listCollections", "firstBatch": found}}

    def _all(self, collection: str, command: Doc) -> list[Doc]:
        return sorted(self.collections.get(f"{command['$db']}.{collection}", ()), key=lambda d: _rank(d["_id"]))

    def _sample(self, command: Doc) -> Doc:
        sample, project, sort = command["pipeline"]
        assert (project, sort) == ({"$project": {"_id": 1}}, {"$sort": {"_id": 1}})
        there = self._all(command["aggregate"], command)
        drawn = random.Random(1).choices(there, k=min(sample["$sample"]["size"], len(there))) if there else []
        found = sorted(({"_id": d["_id"]} for d in drawn), key=lambda d: _rank(d["_id"]))
        return {"cursor": {"id": Int64(0), "ns": "x.y", "firstBatch": found}}

    def _find(self, command: Doc) -> Doc:
        found = self._all(command["find"], command)
        if "min" in command or "max" in command:
            if command.get("hint") != {"_id": 1}:
                raise Refused(51173, "When using min()/max() a hint of which index to use must be provided")
            low, high = command.get("min", {}).get("_id", _NONE), command.get("max", {}).get("_id", _NONE)
            found = [
                d for d in found
                if (low is _NONE or not before(d["_id"], low)) and (high is _NONE or before(d["_id"], high))
            ]  # fmt: skip
        if command.get("sort", {}).get("_id") == -1:
            found.reverse()
        if limit := command.get("limit"):
            found = found[: abs(limit)]
        if wanted := command.get("projection"):
            found = [{name: value for name, value in d.items() if name in wanted} for d in found]
        if "limit" not in command:
            self.follow()
        size = command.get("batchSize", 101)
        number = len(self._cursors) + 1 if len(found) > size else 0
        if number:
            self._cursors[number] = found[size:]
        return {
            "cursor": {"id": Int64(number), "ns": f"{command['$db']}.{command['find']}", "firstBatch": found[:size]}
        }

    def _more(self, command: Doc) -> Doc:
        left, size = self._cursors[command["getMore"]], command.get("batchSize", 101)
        self._cursors[command["getMore"]] = left[size:]
        number = command["getMore"] if left[size:] else 0
        return {
            "cursor": {"id": Int64(number), "ns": f"{command['$db']}.{command['collection']}", "nextBatch": left[:size]}
        }


_NONE = object()


def _unknown(command: Doc) -> Doc:
    raise Refused(59, f"no such command: '{next(iter(command))}'")


def before(one: Any, other: Any) -> bool:
    """Whether MongoDB sorts one value before another."""
    return bool(_rank(one) < _rank(other))


def _rank(value: Any) -> tuple[int, Any]:
    rank = next(rank for rank, kind in RANKS if isinstance(value, kind))
    return rank, bson.encode({"": value}) if isinstance(value, (dict, list)) else value
