"""The words of a plan (`tests.support.command_plans`) that are events and rows.

``+1=a@100`` inserts, ``1:a>b@110`` updates, ``-1:b@120`` deletes, ``~1=a@130`` is of a snapshot, ``!@140`` truncates,
``1>2=a@150`` changes the key, where the number is the position. ``a*300`` is the text a and the number 300, ``_`` a
value that the event leaves out; ``@5.10`` is a commit and a position of PostgreSQL, ``@2f10`` a position of MySQL's
second file, ``@10+3`` one of three seconds later, ``@db1/10`` one of a database of SQL Server. ``//`` begins the next
partition.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.support.hand import PLACEHOLDER, Event, key, key_change, mysql, postgres, row

_EVENT = re.compile(
    r"(?P<op>[+~!-]?)(?P<id>\d*)(?:>(?P<to>\d+))?(?:[:=](?P<v>[^@>]*))?(?:>(?P<new>[^@]*))?"
    r"@(?:(?P<db>\w+)/)?(?:(?P<file>\d+)f)?(?:(?P<commit>\d+)\.)?(?P<pos>\d+)(?:\+(?P<later>\d+))?"
)


def parts(text: str, *, keyless: bool = False) -> list[list[Event]]:
    made = [[e for word in part.split() for one in _each(word) for e in _event(one)] for part in text.split("//")]
    return [[replace(e, key=None) for e in events] for events in made] if keyless else made


def _each(word: str) -> list[str]:
    """``+2..4=x@100`` is ``+2=x@102``, ``+3=x@103``, ``+4=x@104``; ``2*+1=a@5`` is twice the same."""
    times, star, again = word.partition("*")
    if star and times.isdigit():
        return [again] * int(times)
    found = re.fullmatch(r"\+(\d+)\.\.(\d+)=(.*)@(\d+)", word)
    if found is None:
        return [word]
    return [f"+{n}={found[3]}@{int(found[4]) + n}" for n in range(int(found[1]), int(found[2]) + 1)]


def _event(word: str) -> list[Event]:
    found = _EVENT.fullmatch(word)
    assert found is not None, word
    op, pos, id_ = found["op"], int(found["pos"]), int(found["id"] or 0)
    more: dict[str, Any] = {"snapshot": "true"} if op == "~" else {}
    more |= {"file": f"mysql-bin.{int(found['file']):06}"} if found["file"] else {}
    more |= {"ts_ms": 1_657_655_632_000 + 1000 * int(found["later"])} if found["later"] else {}

    def change(kind: str, of: int, before: Any, after: Any) -> Event:
        name = None if kind == "t" else key(of)
        if found["db"]:
            return _of_database(kind, of, before, after, found["db"], pos)
        if found["commit"]:
            return postgres(kind, name, before, after, int(found["commit"]), pos)
        return mysql(kind, name, before, after, pos, **more)

    if op == "!":
        return [change("t", 0, None, None)]
    value = _row(id_, found["v"] or "")
    if found["to"]:
        to = int(found["to"])
        before = None if op else row(id_, None)
        halves = key_change(change("d", id_, before, None), change("c", to, None, _row(to, found["v"] or "_")))
        return {"-": halves[:1], "+": halves[2:]}.get(op, halves)
    if op == "-":
        return [change("d", id_, value, None)]
    if op:
        return [change("c" if op == "+" else "r", id_, None, value)]
    return [change("u", id_, value if found["v"] else None, _row(id_, found["new"]))]


def _of_database(op: str, id_: int, before: Any, after: Any, database: str, pos: int) -> Event:
    """A change of one of SQL Server's databases, whose positions do not compare with the others'."""
    block = {
        "connector": "sqlserver", "name": "srv", "ts_ms": 1_657_655_632_000, "snapshot": "false", "db": database,
        "schema": "dbo", "table": "t", "change_lsn": f"{pos:08x}:00000001:0002",
        "commit_lsn": f"{pos:08x}:00000001:0005", "event_serial_no": 1,
    }  # fmt: skip
    return Event(key(id_), {"before": before, "after": after, "source": block, "op": op, "ts_ms": 1_657_655_632_066})


def _row(id_: int, text: str) -> dict[str, Any]:
    v, _, n = text.partition("*")
    return row(id_, PLACEHOLDER if v == "_" else v, **({"n": int(n) if n.isdigit() else n} if n else {}))


def rows_of(words: Sequence[str]) -> list[tuple[Any, ...]]:
    """``1=a`` or ``1=a*7``."""
    found = [_row(int(id_), v) for id_, _, v in (word.partition("=") for word in words)]
    return [tuple(r.values()) for r in found]
