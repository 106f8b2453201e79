"""Drawn records of a table: envelopes and flattened rows, with and without schema, in groups of mixed shapes."""

import random
from typing import Any

from tests.support.scan_values import SOURCES, TOKENS, changed, literal
from tests.unit.types.type_cases import Case

__all__ = ["Writer"]

STYLES = ("typed", "typed", "typed", "typed or null", "typed or null", "null", "late", "wild", "one wild")
OPS = ("c", "c", "cu", "cud", "d", "cudt", "cudm", "rcu")


class Writer:
    """Writes records of one table."""

    def __init__(self, rnd: random.Random, cases: dict[str, Case], key: tuple[str, ...]) -> None:
        self._rnd, self._cases, self._key = rnd, cases, key
        self._connector = rnd.choice([*SOURCES, "mysql", "postgresql"])
        self._flat = rnd.random() < 0.3
        self._schema = rnd.random() < 0.3
        self._keys = rnd.choice(("struct", "struct", "schema", "text", "none"))
        self._number = 0

    def records(self) -> tuple[list[bytes | None], list[bytes | None]]:
        """Keys and values of a group."""
        rnd = self._rnd
        count = rnd.choice((1, 2, 3, 5, 17, 18, 40, 63, 64))
        self._styles = {name: rnd.choice(STYLES) for name in self._cases}
        self._order = ["id", *self._cases]
        if rnd.random() < 0.2:
            rnd.shuffle(self._order)
        if rnd.random() < 0.1:
            self._order.remove(rnd.choice(self._order))
        if rnd.random() < 0.2 and not self._schema:
            self._order.append(rnd.choice(("new", "_version", "né", "_is_deleted")))
        self._before = rnd.choice(("null", "null", "full", "key", "more", "mixed", "absent", "late"))
        self._block = {n: rnd.choice(values) for n, values in SOURCES[self._connector].items() if rnd.random() < 0.9}
        self._vary = rnd.random() < 0.3
        ops = rnd.choice(OPS)
        letters = [rnd.choice(ops) for _ in range(count)]
        how = rnd.random()
        if how < 0.2:
            letters.sort(reverse=rnd.random() < 0.5)
        elif how < 0.4:
            letters = [ops[i % len(ops)] for i in range(count)]
        values: list[bytes | None] = [self._value(i, op) for i, op in enumerate(letters)]
        keys: list[bytes | None] = [self._key_of(i) for i in range(count)]
        for chosen, share in ((values, 0.35), (keys, 0.15)):
            if rnd.random() < share:
                at = rnd.randrange(count)
                chosen[at] = changed(chosen[at] or b"x", rnd) if rnd.random() < 0.9 else None
        return keys, values

    def _literal(self, name: str, at: int) -> bytes:
        rnd = self._rnd
        if name not in self._cases:
            return rnd.choice(TOKENS[:40]) if name != "id" else b"%d" % at
        style = self._styles[name]
        if style == "null" or (style == "late" and at < 17) or (style == "typed or null" and rnd.random() < 0.4):
            return b"null"
        if style == "wild" or (style == "one wild" and rnd.random() < 0.05):
            return rnd.choice(TOKENS)
        return literal(rnd.choice(self._cases[name].values)[0])

    def _row(self, names: list[str], at: int) -> bytes:
        return b"{" + b",".join(literal(name) + b":" + self._literal(name, at) for name in names) + b"}"

    def _value(self, at: int, op: str) -> bytes:
        payload = self._flattened(at, op) if self._flat else self._envelope(at, op)
        if not self._schema:
            return payload
        row = [{"field": n, **self._declared(n)} for n in self._order]
        envelope = [{"field": n, "type": "struct", "optional": True, "fields": row} for n in ("before", "after")]
        more = [{"field": n, "type": "string", "optional": True} for n in ("__op", "__deleted", "__connector")]
        fields = [*row, *(f for f in more if f["field"] not in self._order)] if self._flat else envelope
        return b'{"schema":' + literal({"type": "struct", "fields": fields}) + b',"payload":' + payload + b"}"

    def _declared(self, name: str) -> dict[str, Any]:
        return self._cases[name].schema if name in self._cases else {"type": "int64", "optional": False}

    def _envelope(self, at: int, op: str) -> bytes:
        rnd = self._rnd
        after = b"null" if op in "dt" and rnd.random() < 0.98 else self._row(self._order, at)
        how = self._before if self._before != "mixed" else rnd.choice(("null", "full"))
        how = ("null" if at < 17 else "full") if how == "late" else how
        before = b"null"
        if how != "null" or (op == "d" and rnd.random() < 0.9):
            before = self._row({"key": ["id"], "more": [*self._order, "old"]}.get(how, self._order), at)
        members = {b"before": before, b"after": after, b"source": self._source(), b"op": literal(op)}
        if how == "absent":
            del members[b"before"]
        if self._connector == "mysql":
            members[b"transaction"] = b"null"
        members[b"ts_ms"] = b"1700000000000"
        if op == "m":
            members = {b"op": b'"m"', b"source": members[b"source"], b"message": b'{"prefix":"x","content":"AA=="}'}
        return b"{" + b",".join(b'"' + name + b'":' + text for name, text in members.items()) + b"}"

    def _source(self) -> bytes:
        rnd = self._rnd
        if self._vary:
            self._block |= {n: rnd.choice(SOURCES[self._connector][n]) for n in self._block}
        block: dict[str, Any] = {"version": "3.0", "connector": self._connector, "name": "s", "ts_ms": 1, **self._block}
        if self._vary:
            block["ts_ms"] = rnd.choice((1, 2, None, 1700000000000))
        block["snapshot"] = rnd.choice(("false", "true", "last", None, True)) if self._vary else "false"
        return literal(block) if rnd.random() < 0.998 else b"null"

    def _flattened(self, at: int, op: str) -> bytes:
        rnd = self._rnd
        row = self._row(self._order, at)[1:-1]
        added: dict[str, Any] = {"__deleted": "true" if op == "d" else "false", "__op": op}
        if self._before in ("null", "full"):
            added |= {"__connector": self._connector, "__source_ts_ms": 5, "__table": "t"}
            added |= {f"__source_{name}": value for name, value in self._block.items()}
        if self._before == "absent":
            del added["__deleted"]
        if self._vary:
            added["__deleted"] = rnd.choice(("true", "false", True, None))
        more = b",".join(
            literal(name) + b":" + literal(value) for name, value in added.items() if name not in self._order
        )
        return b"{" + row + b"," + more + b"}"

    def _key_of(self, at: int) -> bytes | None:
        if self._keys == "none":
            return None
        if self._keys == "text":
            return b"%d" % at
        key = self._row(list(self._key), at)
        if self._keys == "struct":
            return key
        fields = [{"field": n, **self._declared(n)} for n in self._key]
        return b'{"schema":' + literal({"type": "struct", "fields": fields}) + b',"payload":' + key + b"}"
