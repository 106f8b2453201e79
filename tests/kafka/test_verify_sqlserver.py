"""``verify``, ``repair`` and ``resync`` against SQL Server, as a user runs them.

The events are the connector's documented ones. The source is `tests.support.tds_server`, which the real driver connects
to. Nothing here has ever been run against a real SQL Server."""

import json

import pytest

from ch_sink.trust import continuous
from tests.model import Knobs, draw_history
from tests.model.shapes import SHAPES, Layout
from tests.support.documents import CUSTOMERS, SQLSERVER_TRUTH, SqlServerSamples, sqlserver
from tests.support.sink import inside
from tests.support.sqlserver_database import VALUES, SqlServerStand, Table

LOG_END = "00000029:00000010:0004"
pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.slow]


def customers() -> Table:
    names = ["id", "first_name", "last_name", "email", "phone_number"]
    declared = {"id": "int", **dict.fromkeys(names[1:], "nvarchar(255)")}
    rows = [[None if row[n] is None else str(row[n]) for n in names] for row in SQLSERVER_TRUTH]
    return Table(declared, rows, "id")


@pytest.fixture
def new_shop(sqlserver_stand: SqlServerStand) -> SqlServerStand:
    """An empty table, and the rows of its source."""
    # The topic's first events lack the column that the source got later.
    sqlserver_stand.client.command(
        f"CREATE TABLE {sqlserver_stand.name}.customers (id Int32, first_name String, last_name String, email String, "
        "phone_number Nullable(String), _version UInt128, _is_deleted UInt8) "
        "ENGINE = ReplacingMergeTree(_version, _is_deleted) ORDER BY id"
    )
    sqlserver_stand.source.tables["[dbo].[customers]"] = customers()
    return sqlserver_stand


@pytest.fixture
def shop(new_shop: SqlServerStand) -> SqlServerStand:
    """The documents' stream, applied, and its final rows at the source."""
    new_shop.stream("customers", [sent[:3] for sent in sqlserver(CUSTOMERS, "schema", headers=False).sent])
    return new_shop


def test_differences_are_found_by_column_and_mended(shop: SqlServerStand) -> None:
    code, report = shop.verify()
    assert (code, report["against"], report["rows"], report["left_out"]) == (0, "source", len(SQLSERVER_TRUTH), [])
    before = customers().rows
    changed = [list(row) for row in before]
    changed[0][2] = "archer"  # one value
    changed[1][4] = "+1"  # NULL in the table
    changed[3][4] = None  # NULL at the source
    gone = changed.pop(2)  # a delete was lost
    changed.append(["2000", "New", "", "new@example.com", None])
    shop.source.tables["[dbo].[customers]"].rows = changed
    code, report = shop.verify()
    found = {e["key"]["id"]: (e["kind"], e["columns"]) for e in report["examples"]}
    assert code == 1
    assert (report["missing"], report["extra"], report["different"]) == (1, 1, 3)
    assert found[1001] == ("different", {"last_name": ["archer", "Archer"]})
    assert found[1002] == ("different", {"phone_number": ["+1", None]})
    assert found[1005] == ("different", {"phone_number": [None, "+1-555-123456"]})
    assert (found[int(gone[0] or 0)][0], found[2000][0]) == ("extra", "missing")
    done = inside("repair", shop.config, "--apply", "--patience", "0")
    assert done.returncode == 0, done.stderr
    assert shop.verify()[0] == 0


@pytest.mark.long
@pytest.mark.parametrize(
    "log_end",
    [
        pytest.param("00000029:00000010:0004", id="known"),
        pytest.param(None, id="only waited for", marks=pytest.mark.long),
    ],
)
def test_a_change_that_is_under_way_is_no_difference(shop: SqlServerStand, log_end: str | None) -> None:
    """The source is ahead when it is read; the stream gets the change afterwards."""
    samples = SqlServerSamples()
    after = {n: v for n, v in SQLSERVER_TRUTH[0].items() if n != "phone_number"} | {"first_name": "Sarah"}
    lsn = {"commit_lsn": "00000029:00000010:0004", "change_lsn": "00000029:00000010:0002", "event_serial_no": 2}
    late = samples.event("update", after=after, source=lsn)
    shop.source.tables["[dbo].[customers]"].rows[0][1] = "Sarah"  # type: ignore[index]
    assert shop.verify()[1]["different"] == 1
    shop.source.log_end = log_end
    shop.server.then = lambda: shop.send(samples.key(1001), late)
    code, report = shop.verify("--patience", "8")
    assert (code, report["different"], report["changing"]) == (0, 0, 0)


@pytest.mark.long
def test_parts_are_compared_one_after_the_other(shop: SqlServerStand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continuous, "PART", 2)
    shop.server.seen.clear()
    command = ("--continuous", "--rounds", "1", "--load", "100%", "--patience", "0", "--json")
    done = inside("verify", shop.config, *command)
    [found] = json.loads(done.stdout)["streams"]
    assert (done.returncode, found["rows"], found["differences"]) == (0, len(SQLSERVER_TRUTH), 0), done.stderr
    ranges = [sql.partition(" WHERE ")[2] for sql in shop.server.seen if " WHERE [id]" in sql]
    assert len(ranges) == 3
    assert [">=" in limits for limits in ranges] == [False, True, True]


@pytest.mark.long
def test_a_table_is_filled_anew(shop: SqlServerStand) -> None:
    rows = [[str(n), "name", "of", f"{n}@example.com", None] for n in range(1, 3001)]
    shop.source.tables["[dbo].[customers]"].rows = rows
    done = inside("resync", shop.config, "--apply", "--patience", "0")
    assert done.returncode == 0, done.stderr
    for more in ((), ("--parallel", "2")):
        code, report = shop.verify(*more)
        assert (code, report["rows"], report["equal"]) == (0, 3000, True)
    assert sum("WHERE [id]" in sql for sql in shop.server.seen) == 8


@pytest.mark.long
def test_a_change_that_the_loaded_rows_show_is_not_applied_again(shop: SqlServerStand) -> None:
    # A row was created and deleted before the reading; the connector is late.
    shop.source.captured = "00000030000000100004"
    done = inside("resync", shop.config, "--apply", "--patience", "0")
    assert done.returncode == 0, done.stderr
    send_creates(shop, {7001: "00000029:00000010:0004", 7002: "00000031:00000010:0004"})
    assert above_7000(shop) == [7002]


@pytest.mark.long
def test_an_empty_table_is_filled_without_a_snapshot_of_the_connector(new_shop: SqlServerStand) -> None:
    new_shop.prepare("customers")
    new_shop.source.captured = "00000030000000100004"
    done = inside("resync", new_shop.config, "--apply", "--patience", "0")
    assert done.returncode == 0, done.stderr
    assert new_shop.verify()[0] == 0
    for command in (("check",), ("status",), ("explain", '{"id": 1001}'), ("repair", "--patience", "0"), ("purge",)):
        said = inside(command[0], new_shop.config, *command[1:])
        assert "unexpected" not in said.stderr, (command, said.stderr)
    # The topic never had the rows, so it cannot tell that they are wrong.
    report = new_shop.verify("--against", "topic")[1]
    assert (report["extra"], report["unknown"]) == (0, len(SQLSERVER_TRUTH))
    done = inside("resync", new_shop.config, "--apply", "--against", "topic")
    assert "was filled from the database" in done.stderr
    done = inside("resync", new_shop.config, "--apply", "--patience", "0")
    assert done.returncode == 0, done.stderr
    assert new_shop.verify()[0] == 0
    # The connector begins with what the rows show already.
    send_creates(new_shop, {7001: "00000029:00000010:0004", 7002: "00000031:00000010:0004"})
    assert above_7000(new_shop) == [7002]
    # Neither is the row of the first one missing to the topic, which still holds the event.
    report = new_shop.verify("--against", "topic")[1]
    assert (report["equal"], report["missing"], report["unknown"]) == (True, 0, len(SQLSERVER_TRUTH))


def send_creates(shop: SqlServerStand, positions: dict[int, str]) -> None:
    """Creates of these ids with their commit positions, one after the other."""
    samples = SqlServerSamples()
    for id_, lsn in positions.items():
        late = samples.event("create", source={"commit_lsn": lsn, "change_lsn": lsn, "event_serial_no": 1})
        late["payload"]["after"] = {**late["payload"]["after"], "id": id_}
        shop.send(samples.key(id_), late)


def above_7000(shop: SqlServerStand) -> list[int]:
    found = shop.client.rows(f"SELECT id FROM {shop.name}.customers_current WHERE id > 7000 ORDER BY id")
    return [int(row["id"]) for row in found]


@pytest.mark.long
def test_what_is_wrong_with_the_source_is_said(shop: SqlServerStand) -> None:
    shop.source.tables["[dbo].[other]"] = Table({"a": "int"}, [["1"]])
    for setting, said in (
        ("source.table=dbo.nowhere", "it does not exist, or the user may not see it"),
        ("source.table=dbo.other", "has no column that gives the key column 'id'"),
        ("source.url=sqlserver://127.0.0.1:1/testDB", "refuses the login: Unable to connect"),
        ("source.url=sqlserver://127.0.0.1", "names no database"),
    ):
        done = inside("verify", shop.config, "--set", setting)
        assert done.returncode in (1, 2)
        assert said in done.stderr, (setting, done.stderr)
        assert shop.server.password not in done.stderr


DECLARED = {"int32": "int", "int64": "bigint", "string": "nvarchar(max)"}


@pytest.mark.parametrize(
    ("seed", "layout"),
    [
        (2, "composite"),
        *(pytest.param(n, layout, marks=pytest.mark.long) for n, layout in ((1, "single"), (3, "text"))),
    ],
)
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
    sqlserver_stand.read = "src"
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


@pytest.mark.long
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
