"""One column of any type: change events that carry it, and what the engine shows of it."""

import json
import tempfile
from typing import Any

import numpy as np
import pyarrow as pa

from ch_sink.model.change import Records
from tests.support.engine import Engine
from tests.unit.types.type_cases import Case
from tests.unit.types.type_cases.case import Raw

SOURCE = {"connector": "mysql", "name": "s", "ts_ms": 1, "snapshot": "false", "file": "b.1", "pos": 1, "row": 0}


def records(case: Case, *, schema: bool) -> Records:
    """Change events of a table with the columns ``id`` and ``x``."""
    literals: list[Any] = [v for v, _ in case.values] + ([None] if case.schema["optional"] else [])
    identity = {"field": "id", "type": "int64", "optional": False}
    row = [identity, {"field": "x", **case.schema}]
    envelope = {
        "type": "struct",
        "fields": [
            {"field": "before", "type": "struct", "optional": True, "fields": row},
            {"field": "after", "type": "struct", "optional": True, "fields": row},
        ],
    }
    keys, values = [], []
    for i, literal in enumerate(literals):
        text = (
            str(literal) if isinstance(literal, Raw) else json.dumps(literal, ensure_ascii=False, separators=(",", ":"))
        )
        payload = f'{{"before":null,"after":{{"id":{i},"x":{text}}},"source":{json.dumps(SOURCE)},"op":"c"}}'
        key = f'{{"id":{i}}}'
        if schema:
            payload = f'{{"schema":{json.dumps(envelope)},"payload":{payload}}}'
            key = f'{{"schema":{json.dumps({"type": "struct", "fields": [identity]})},"payload":{key}}}'
        keys.append(key.encode())
        values.append(payload.encode())
    n = len(literals)
    return Records("t", 0, np.arange(n), np.zeros(n, dtype=np.int64), keys, values, None)


def stored(engine: Engine, columns: list[tuple[str, pa.Array]]) -> list[list[bytes | None]]:
    """What ``toString`` shows of arrays that were inserted, as Arrow, into columns of these types."""
    rows = max(len(array) for _, array in columns)
    declared = ", ".join(f"c{i} {kind}" for i, (kind, _) in enumerate(columns))
    engine.run("DROP TABLE IF EXISTS d.t")
    engine.run(f"CREATE TABLE d.t (i UInt32, {declared}) ENGINE = MergeTree ORDER BY i")
    arrays = [pa.concat_arrays([a, pa.nulls(rows - len(a), a.type)]) for _, a in columns]
    names = ["i", *(f"c{i}" for i in range(len(columns)))]
    table = pa.table([pa.array(range(rows), pa.uint32()), *arrays], names=names)
    with tempfile.NamedTemporaryFile(suffix=".arrow") as file:
        with pa.ipc.new_file(file.name, table.schema) as writer:
            writer.write_table(table)
        engine.run(f"INSERT INTO d.t SELECT * FROM file('{file.name}', 'Arrow')")
    wanted = ", ".join(f"toString(c{i}) AS c{i}" for i in range(len(columns)))
    answer = engine._session.query(
        f"SELECT {wanted} FROM d.t ORDER BY i SETTINGS output_format_arrow_string_as_string = 0", "Arrow"
    )
    shown = pa.ipc.open_file(pa.BufferReader(answer.bytes())).read_all()
    return [shown[f"c{i}"].cast(pa.binary()).to_pylist()[: len(array)] for i, (_, array) in enumerate(columns)]
