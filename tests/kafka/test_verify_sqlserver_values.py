"""``verify`` against SQL Server: values of all types, and drawn histories, equal what the stream stores.

The source is `tests.support.tds_server`, which the real driver connects to. Nothing here has ever been run against a
real SQL Server.
"""

import json

import pytest

from tests.model import Knobs, draw_history
from tests.model.shapes import SHAPES, Layout
from tests.support.documents import SqlServerSamples
from tests.support.sqlserver_database import VALUES, SqlServerStand, Table

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.slow]

DECLARED = {"int32": "int", "int64": "bigint", "string": "nvarchar(max)"}


@pytest.mark.parametrize(("seed", "layout"), [(1, "single"), (2, "composite"), (3, "text"), (4, "single")])
def test_drawn_histories_equal_their_source(sqlserver_stand: SqlServerStand, seed: int, layout: str) -> None:
    """Overlapping transactions, moved keys, repeats and positions that step back; with and without schemas."""
    shape = SHAPES[layout]
    history = draw_history(
        seed, "sqlserver", layout=Layout("drawn", shape, shape.key), knobs=Knobs(partitions=1, operations=(40, 80))
    )
    columns = {c.name: "date" if c.semantic else DECLARED[c.connect] for c in history.columns}
    rows = [[None if row[n] is None else str(row[n]) for n in columns] for row in history.truth]
    sqlserver_stand.source.tables["[dbo].[drawn]"] = Table(columns, rows, shape.key[0])
    sqlserver_stand.client.command(
        f"CREATE TABLE {sqlserver_stand.name}.drawn ({history.layout.columns_sql}, _version UInt128, "
        f"_is_deleted UInt8) ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY ({', '.join(shape.key)})"
    )
    sqlserver_stand.stream("drawn", [(r.key, r.value, r.headers) for r in history.records[0]])
    code, report = sqlserver_stand.verify()
    assert rows
    assert (code, report["rows"], report["left_out"]) == (0, len(rows), []), report["examples"]


def all_types(sqlserver_stand: SqlServerStand) -> Table:
    """Events of a row for each value and one of nothing but NULL; returns the table."""
    samples = SqlServerSamples()
    fields = [{"type": "int32", "optional": False, "field": "id"}, *(t.field for t in VALUES)]
    images = {"type": "struct", "optional": True, "name": "server.Value", "fields": fields}
    schema = {**samples.schema, "fields": [
        {**images, "field": f["field"]} if f["field"] in ("before", "after") else f for f in samples.schema["fields"]
    ]}  # fmt: skip
    depth = max(len(t.values) for t in VALUES) + 1
    events, rows = [], []
    for n in range(depth):
        row = {t.name: t.values[n] if n < len(t.values) else (None, None) for t in VALUES}
        value = samples.snapshot({"id": n, **{name: sent for name, (_, sent) in row.items()}})
        events.append((samples.key(n), {**value, "schema": schema}))
        rows.append([str(n), *(stored for stored, _ in row.values())])
    table = Table({"id": "int", **{t.name: t.declared for t in VALUES}}, rows, "id")
    sqlserver_stand.source.tables["[dbo].[all types]"] = table
    sqlserver_stand.stream("values", [(json.dumps(k).encode(), json.dumps(v).encode(), ()) for k, v in events])
    return table


def test_every_type_equals_what_the_stream_stores(sqlserver_stand: SqlServerStand) -> None:
    table = all_types(sqlserver_stand)
    of = ("--set", "source.table=dbo.all types")
    code, report = sqlserver_stand.verify(*of)
    assert (code, report["different"], report["left_out"]) == (0, 0, []), report
    # The smallest change of each type is found.
    others = {
        "a_bit": "0", "a_tinyint": "254", "a_bigint": str(1 - 2**63), "a_real": "1.1000001",
        "a_float": "0.10000000000000002",
        "a_decimal": "99999999999999.9998", "a_money": "922337203685477.5806", "a_smallmoney": "1.5001",
        "a_date": "2024-03-01", "a_time3": "23:59:59.998", "a_time6": "00:00:00.000002", "a_time7": "23:59:59.9999998",
        "a_datetime": "2018-06-20 15:13:16.993", "a_smalldatetime": "2018-06-20 15:14:00",
        "a_datetime2_3": "2018-06-20 15:13:16.946", "a_datetime2_6": "2018-06-20 15:13:16.945105",
        "a_datetime2_7": "2018-06-20 15:13:16.9451043", "a_datetimeoffset": "2018-07-18 13:14:15.1234568 +05:30",
        "a_char": "ab  x", "a_nvarchar": " ", "a_long": "long " * 2999, "an_xml": '<a b="2">é</a>',
        "a_guid": "6F9619FF-8B86-D011-B42D-00C04FC964FE", "a_binary": "00ff11", "a_rowversion": "00000000000007d2",
    }  # fmt: skip
    assert list(others) == list(table.columns)[1:]
    table.rows = [["0", *others.values()], *table.rows[1:]]
    code, report = sqlserver_stand.verify(*of)
    [example] = report["examples"]
    assert (code, example["key"], set(example["columns"])) == (1, {"id": 0}, set(others))
