"""A source table whose columns change, as a connector reports it, with its final rows.

The model knows what a database does: a column that is added has its default in all rows, and no event comes for them.
"""

import json
import random
from collections import defaultdict
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ch_sink.discovery.sample import sample_schema
from ch_sink.model.change import Records
from ch_sink.types.connect import RowSchema

_VALUES: dict[str, tuple[Any, ...]] = {
    "int32": (0, 1, -7, 2**31 - 1),
    "int64": (0, 5, -(2**62), 2**40),
    "string": ("", "x", "it's", "ünï"),
    "boolean": (True, False),
    "double": (0.5, -1.25, 1e300),
}


@dataclass(slots=True)
class Added:
    """A column of the source, as it is now."""

    kind: str
    optional: bool = True
    default: Any = None

    def schema(self, name: str) -> dict[str, Any]:
        out = {"field": name, "type": self.kind, "optional": self.optional}
        return out if self.default is None else {**out, "default": self.default}


@dataclass(slots=True)
class EvolvingSource:
    """One table of MySQL. ``schemas``: whether the records carry the schema envelope."""

    schemas: bool = True
    partitions: int = 3
    columns: dict[str, Added] = field(default_factory=lambda: {"id": Added("int64", False), "v": Added("string")})
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    events: dict[int, list[tuple[bytes | None, bytes]]] = field(default_factory=lambda: defaultdict(list))
    position: int = 100
    key: str = "id"
    """The column of the primary key."""
    keyed: bool = True
    """Whether the table has a primary key; records of one without carry no key."""
    first: dict[str, Added] = field(init=False)
    """The columns of the beginning."""
    first_defaults: dict[str, Any] = field(default_factory=dict)
    """Defaults of all columns that ever were added."""

    def __post_init__(self) -> None:
        self.first = deepcopy(self.columns)

    def declared(self) -> RowSchema:
        """What ``init`` makes a table of while the columns are those of the beginning."""
        beginning = EvolvingSource(True, 1, deepcopy(self.first), key=self.key, keyed=self.keyed)
        beginning.write(0)
        schema = sample_schema(beginning.records()[0])
        assert schema is not None
        return schema

    def add(self, name: str, column: Added, before: str | None = None) -> None:
        """ALTER TABLE … ADD COLUMN, at the end or in front of another column."""
        self.first_defaults[name] = column.default
        names = list(self.columns)
        at = names.index(before) if before else len(names)
        there = dict(self.columns)
        self.columns = {**{n: there[n] for n in names[:at]}, name: column, **{n: there[n] for n in names[at:]}}
        for row in self.rows.values():
            row[name] = column.default

    def drop(self, name: str) -> None:
        del self.columns[name]
        for row in self.rows.values():
            del row[name]

    def change(self, name: str, kind: str | None = None, optional: bool | None = None) -> None:
        """ALTER TABLE … MODIFY COLUMN."""
        column = self.columns[name]
        column.kind = kind or column.kind
        column.optional = column.optional if optional is None else optional

    def write(self, key: int, **values: Any) -> None:
        """INSERT, or UPDATE if the row exists."""
        old = self.rows.get(key)
        start = {n: c.default for n, c in self.columns.items()} if old is None else old
        self.rows[key] = {**start, self.key: key, **values}
        self._event("c" if old is None else "u", key, old, self.rows[key])

    def delete(self, key: int) -> None:
        old = self.rows.pop(key)
        self._event("d", key, old, None)

    def _event(self, op: str, key: int, before: dict[str, Any] | None, after: dict[str, Any] | None) -> None:
        self.position += 10
        block = {"connector": "mysql", "name": "my", "ts_ms": 1_700_000_000_000, "snapshot": "false"}
        block |= {"file": "binlog.000003", "pos": self.position, "row": 0}
        names = list(self.columns)
        images = [None if r is None else {n: r[n] for n in names} for r in (before, after)]
        payload = {"before": images[0], "after": images[1], "source": block, "op": op}
        value: Any = payload
        if self.schemas:
            row = {"type": "struct", "optional": True, "fields": [c.schema(n) for n, c in self.columns.items()]}
            fields = [{**row, "field": "before"}, {**row, "field": "after"}, {"type": "string", "field": "op"}]
            value = {"schema": {"type": "struct", "fields": fields}, "payload": payload}
        encoded = json.dumps({self.key: key}).encode() if self.keyed else None, json.dumps(value).encode()
        self.events[key % self.partitions].append(encoded)

    def records(self) -> dict[int, Records]:
        """All events so far, by partition."""
        return {p: self._records(p, found) for p, found in sorted(self.events.items())}

    @staticmethod
    def _records(partition: int, found: list[tuple[bytes | None, bytes]]) -> Records:
        places = np.arange(len(found), dtype=np.int64)
        keys: list[bytes | None] = [k for k, _ in found]
        values: list[bytes | None] = [v for _, v in found]
        return Records("evolving", partition, places, places, keys, values)

    def truth(self) -> list[tuple[Any, ...]]:
        """The rows, by key, as tuples of the columns that there are now."""
        return [tuple(self.rows[key][n] for n in self.columns) for key in sorted(self.rows)]

    def live(self, rng: random.Random, steps: int, *, changes: bool = True) -> None:
        """A drawn history: rows come, change and go; columns are added and dropped; ``changes``: others become wider
        or can be null."""
        for number in range(steps):
            action = rng.random()
            spare = [n for n in self.columns if n != "id"]
            if action < 0.12 and len(spare) < 6:
                self._draw_column(rng, f"c{number}")
            elif action < 0.17 and len(spare) > 1:
                self.drop(rng.choice(spare))
            elif action < 0.22 and self.schemas and changes:
                self._draw_change(rng, spare)
            elif action < 0.4 and self.rows:
                self.delete(rng.choice(sorted(self.rows)))
            else:
                chosen = rng.sample(spare, rng.randint(0, len(spare)))
                key = rng.randrange(8)
                needed = [n for n in spare if not self.columns[n].optional and key not in self.rows]
                self.write(key, **{n: self._value(rng, n) for n in dict.fromkeys([*chosen, *needed])})

    def _draw_column(self, rng: random.Random, name: str) -> None:
        kind = rng.choice(list(_VALUES))
        default = rng.choice(_VALUES[kind]) if self.schemas and rng.random() < 0.6 else None
        optional = default is None or rng.random() < 0.5
        self.add(name, Added(kind, optional, default), rng.choice([None, *list(self.columns)]))

    def _draw_change(self, rng: random.Random, spare: list[str]) -> None:
        name = rng.choice(spare)
        kind = "int64" if self.columns[name].kind == "int32" and rng.random() < 0.5 else None
        self.change(name, kind, True if rng.random() < 0.5 else None)

    def _value(self, rng: random.Random, name: str) -> Any:
        column = self.columns[name]
        if column.optional and rng.random() < 0.3:
            return None
        return rng.choice(_VALUES[column.kind])
