"""One column of any type: change events that carry it, and what the engine shows of it."""

import json
import tempfile
from typing import Any

import pyarrow as pa

from ch_sink.clickhouse import ClickHouseWriter, Client, detect
from ch_sink.model.change import Records
from ch_sink.model.policy import policy_of
from ch_sink.ports import Insert
from ch_sink.types.arrow import carried
from tests.support.engine import Engine
from tests.support.event import chunk_of
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
    return chunk_of(keys, values)


def stored(engine: Engine, columns: list[tuple[str, pa.Array]]) -> list[list[bytes | None]]:
    """What ``toString`` shows of arrays that were inserted, as Arrow, into columns of these types.

    The rows are read as the sink reads them and inserted once more, which must show the same.
    """
    table = _side_by_side(columns)
    engine.run("DROP TABLE IF EXISTS d.t")
    engine.run(f"CREATE TABLE d.t (i UInt32, {_declared(columns)}) ENGINE = MergeTree ORDER BY i")
    _insert(engine, table)
    shown = _asked(engine, _shown(columns))
    read = ", ".join(f"{carried(f'd.t.c{i}', kind)} AS c{i}" for i, (kind, _) in enumerate(columns))
    again = _asked(engine, f"i, {read}").cast(table.schema)
    engine.run("TRUNCATE TABLE d.t")
    _insert(engine, again)
    assert _asked(engine, _shown(columns)) == shown
    return _by_column(columns, shown)


def _insert(engine: Engine, table: pa.Table) -> None:
    """FORMAT Arrow, the way of the HTTP interface."""
    with tempfile.NamedTemporaryFile(suffix=".arrow") as file:
        with pa.ipc.new_file(file.name, table.schema) as writer:
            writer.write_table(table)
        engine.run(f"INSERT INTO d.t SELECT * FROM file('{file.name}', 'Arrow')")


def _asked(engine: Engine, what: str) -> pa.Table:
    sql = f"SELECT {what} FROM d.t ORDER BY i SETTINGS output_format_arrow_string_as_string = 0"
    return pa.ipc.open_file(pa.BufferReader(engine._session.query(sql, "Arrow").bytes())).read_all()


def stored_by(client: Client, database: str, columns: list[tuple[str, pa.Array]]) -> list[list[bytes | None]]:
    """The same over HTTP, by the sink's own writer."""
    client.command(f"DROP TABLE IF EXISTS {database}.t")
    create = f"CREATE TABLE {database}.t (i UInt32, {_declared(columns)}) ENGINE = MergeTree ORDER BY i"
    client.command(create, settings={"enable_time_time64_type": 1})
    ClickHouseWriter(client, detect(client, database, "t", policy_of())).write(
        Insert(_side_by_side(columns), "all"), "t"
    )
    return _by_column(columns, client.arrow(f"SELECT {_shown(columns)} FROM {database}.t ORDER BY i"))


def _side_by_side(columns: list[tuple[str, pa.Array]]) -> pa.Table:
    rows = max(len(array) for _, array in columns)
    arrays = [a.take(pa.array([min(i, len(a) - 1) for i in range(rows)])) for _, a in columns]  # the last one again
    names = ["i", *(f"c{i}" for i in range(len(columns)))]
    return pa.table([pa.array(range(rows), pa.uint32()), *arrays], names=names)


def _declared(columns: list[tuple[str, pa.Array]]) -> str:
    return ", ".join(f"c{i} {kind}" for i, (kind, _) in enumerate(columns))


def _shown(columns: list[tuple[str, pa.Array]]) -> str:
    return ", ".join(f"toString(c{i}) AS c{i}" for i in range(len(columns)))


def _by_column(columns: list[tuple[str, pa.Array]], shown: pa.Table) -> list[list[bytes | None]]:
    return [shown[f"c{i}"].cast(pa.binary()).to_pylist()[: len(array)] for i, (_, array) in enumerate(columns)]
