"""`verify --against COPY`: a restored backup or an export is what the table was, and planted differences are found."""

from pathlib import Path
from urllib.request import urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ch_sink.clickhouse import Client
from ch_sink.errors import ChSinkError, ConfigError, StreamFailed
from ch_sink.trust.against_copy import compared_with_copy
from ch_sink.trust.report import Report, lines
from ch_sink.trust.subject import Options
from tests.support.choose import some
from tests.support.hand_commands import Hand, hand, timed
from tests.support.hand_steps import EVENTS, backup, lose, plant
from tests.support.hand_tables import COLLAPSING, ENGINES, delete, insert, row, update
from tests.support.recorded import CASES, one_encoding_each
from tests.support.trust import recorded_subject

pytestmark = pytest.mark.integration
CHANGES = [*EVENTS, update(row(2, "b"), row(2, "bb"), 150), delete(row(3, "c"), 160)]
"""Leave the rows 1, 2, 4 and 5."""
TYPES = [("postgres-json_plain", "all_types"), ("mariadb-json_plain", "all_types")]
LATER = [update(row(4, "d"), row(4, "dd"), 170), delete(row(5, "e"), 180), insert(6, "f", 190)]


def found(it: Hand, copy: str, **options: object) -> tuple[int, int, int]:
    report = compared(it, copy, **options)
    return report.missing, report.extra, report.different


def compared(it: Hand, copy: str, **options: object) -> Report:
    return compared_with_copy(it.subject, copy, Options(**options))  # type: ignore[arg-type]


def raw_backup(it: Hand) -> str:
    """As `CREATE TABLE … AS SELECT *` makes it: all stored rows, in a table that does not merge them."""
    it.client.command(
        f"CREATE TABLE {it.database}.copy ENGINE = MergeTree ORDER BY tuple() AS SELECT * FROM {it.database}.t"
    )
    return f"{it.database}.copy"


def same_engine(it: Hand) -> str:
    backup(it)
    return f"{it.database}.backup"


def view_rows(it: Hand) -> str:
    """What readers see, without the sink's own columns."""
    it.client.command(f"CREATE TABLE {it.database}.copy ENGINE = Memory AS SELECT id, v FROM {it.database}.t_current")
    return f"{it.database}.copy"


COPIES = {"raw": raw_backup, "engine": same_engine, "view": view_rows}


@pytest.mark.parametrize(
    ("engine", "made"),
    some(
        [(e, c) for e in (*ENGINES, "append") for c in COPIES],
        [("replacing", "raw"), ("sign", "engine"), ("collapsing", "raw"), ("versioned", "view"), ("append", "raw")],
    ),
)
def test_a_copy_of_now_is_equal_and_planted_differences_are_found(
    client: Client, database: str, engine: str, made: str
) -> None:
    it = hand(client, database, engine, CHANGES)
    it.read_all()
    copy = COPIES[made](it)
    assert found(it, copy) == (0, 0, 0)
    plant(it, 8, like=1)
    lose(it, 2)
    it.client.command(f"ALTER TABLE {database}.t UPDATE v = 'off' WHERE id = 4 SETTINGS mutations_sync = 2")
    report = compared(it, copy)
    assert (report.missing, report.extra, report.different, report.columns) == (1, 1, 1, {"v": 1})
    assert {(e.kind, e.key["id"]) for e in report.examples} == {("missing", 2), ("extra", 8), ("different", 4)}
    assert found(it, copy, condition="id < 3") == (1, 0, 0)
    left = it.client.rows(f"SELECT name FROM system.tables WHERE database = '{database}' AND name LIKE '%shadow%'")
    assert left == []


@pytest.mark.parametrize("engine", ["replacing", "sign", "append"])
def test_rows_that_changed_since_the_copy_are_not_judged(client: Client, database: str, engine: str) -> None:
    it = hand(client, database, engine, [*CHANGES, *LATER])
    it.read((0, len(CHANGES)))
    copy = same_engine(it)
    it.read_all()
    lose(it, 1)
    report = compared(it, copy)
    assert (report.missing, report.extra, report.different, report.since) == (1, 0, 0, 3)
    assert "3 rows changed since the copy was made, and not judged" in "\n".join(lines(report))


def test_times_tell_what_is_newer(client: Client, database: str) -> None:
    it = timed(client, database, "time", CHANGES)
    it.read_all()
    copy = same_engine(it)
    later = "* REPLACE('x' AS v, _version + INTERVAL 1 SECOND AS _version)"
    client.command(f"INSERT INTO {database}.t SELECT {later} FROM {database}.t WHERE id = 1")
    client.command(f"INSERT INTO {database}.t SELECT * REPLACE('y' AS v) FROM {database}.t WHERE id = 2")
    report = compared(it, copy)
    assert (report.missing, report.extra, report.different, report.since) == (0, 0, 1, 1)


def test_a_copy_without_versions_is_compared_as_it_is(client: Client, database: str) -> None:
    it = hand(client, database, "replacing", [*CHANGES, *LATER])
    it.read((0, len(CHANGES)))
    copy = view_rows(it)
    it.read_all()
    assert found(it, copy) == (1, 1, 1)


@pytest.mark.parametrize("engine", ["replacing", "collapsing"])
def test_parquet_files(client: Client, database: str, engine: str, tmp_path: Path) -> None:
    it = hand(client, database, engine, CHANGES)
    it.read_all()
    for part in (0, 1):
        arrow = client.arrow(f"SELECT * FROM {database}.t WHERE id % 2 = {part}")
        pq.write_table(arrow, tmp_path / f"part{part}.parquet")
    files = str(tmp_path / "*.parquet")
    assert found(it, files) == (0, 0, 0)
    lose(it, 2)
    assert found(it, files) == (1, 0, 0)
    pq.write_table(pa.table({"id": [1, 4, 5], "v": ["a", "d", "other"]}), tmp_path / "rows.parquet")
    report = compared(it, str(tmp_path / "rows.parquet"))
    assert (report.missing, report.extra, report.different, report.columns) == (0, 0, 1, {"v": 1})
    assert it.client.rows(f"SELECT name FROM system.tables WHERE database = '{database}' AND name LIKE '%copy%'") == []


@pytest.mark.parametrize(("stream", "table"), some(one_encoding_each(CASES), TYPES))
def test_an_export_of_all_types_is_equal(
    client: Client, database: str, stream: str, table: str, tmp_path: Path
) -> None:
    subject = recorded_subject(client, database, stream, table)
    export = f"SELECT * FROM {subject.table.qualified} FORMAT Parquet"
    with urlopen(client.settings.url, data=export.encode()) as answer:
        (tmp_path / "export.parquet").write_bytes(answer.read())
    report = compared_with_copy(subject, str(tmp_path / "export.parquet"), Options())
    assert (report.equal, report.left_out) == (True, ()), report.examples
    assert report.rows > 0 or table == "toast_t"


def test_a_file_that_is_none(client: Client, database: str, tmp_path: Path) -> None:
    it = hand(client, database, "replacing", CHANGES)
    it.read_all()
    (tmp_path / "text.parquet").write_text("id,v\n1,a\n")
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a1.parquet")
    pq.write_table(pa.table({"id": [1], "v": ["a"]}), tmp_path / "a2.parquet")
    pq.write_table(pa.table({"v": ["a"]}), tmp_path / "no_key.parquet")
    pq.write_table(pa.table({"id": [1, 1], "v": ["a", "b"]}), tmp_path / "twice.parquet")
    pq.write_table(pa.table({"id": [None, 1], "v": ["a", "b"]}), tmp_path / "null_key.parquet")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "other.parquet")
    for name, error in {
        "none.parquet": "there is no file",
        "text.parquet": "text.parquet cannot be read",
        "a?.parquet": "a1.parquet has no column 'v'",
        "no_key.parquet": "rows cannot be told apart",
        "twice.parquet": "has several rows of one key: id=1",
        "null_key.parquet": "null_key.parquet",
        "other.parquet": "has no column of",
    }.items():
        with pytest.raises(ChSinkError, match=error.replace("?", r"\?")):
            compared(it, str(tmp_path / name))


def test_a_table_that_is_no_copy(client: Client, database: str) -> None:
    it = hand(client, database, "replacing", CHANGES)
    it.read_all()
    client.command(f"CREATE TABLE {database}.narrow (id Int32, v Nullable(String)) ENGINE = Memory")
    client.command(f"CREATE TABLE {database}.short (id Int64, v String) ENGINE = Memory")
    client.command(f"INSERT INTO {database}.short SELECT id, 'x' FROM {database}.t_current")
    for name, error in {
        "nothing": "is not known",
        f"{database}.t": "own table",
        f"{database}.none": "no table",
    }.items():
        with pytest.raises((ConfigError, StreamFailed), match=error):
            compared(it, name)
    with pytest.raises(StreamFailed, match="as Int32, and not as Int64"):
        compared(it, f"{database}.narrow")
    report = compared(it, f"{database}.short")
    assert (report.equal, report.left_out) == (True, ("v",))
    with pytest.raises(StreamFailed, match="which --where names"):
        compared(it, f"{database}.short", condition="v = 'x'")
    for condition in ("v =", "nothing = 1"):
        with pytest.raises(StreamFailed, match=f"--where {condition} is no condition"):
            compared(it, f"{database}.short", condition=condition)


def test_a_copy_that_computes_a_column(client: Client, database: str) -> None:
    it = hand(client, database, "replacing", [insert(1, "1", 100), insert(2, "x", 110)])
    it.read_all()
    columns = "id Int64, v Nullable(String) MATERIALIZED toString(id), _version UInt128, _is_deleted UInt8"
    client.command(f"CREATE TABLE {database}.copy ({columns}) ENGINE = MergeTree ORDER BY tuple()")
    client.command(f"INSERT INTO {database}.copy SELECT id, _version, _is_deleted FROM {database}.t")
    assert found(it, f"{database}.copy") == (0, 0, 1)


def test_a_raw_copy_does_not_tell_which_of_equal_versions_is_later(client: Client, database: str) -> None:
    """As a repair leaves them until they are merged; FINAL tells."""
    it = hand(client, database, "replacing", CHANGES)
    it.read_all()
    client.command(f"SYSTEM STOP MERGES {database}.t")
    client.command(f"INSERT INTO {database}.t SELECT * FROM {database}.t WHERE id = 1")
    assert found(it, raw_backup(it)) == (0, 0, 0)
    client.command(f"DROP TABLE {database}.copy")
    client.command(f"INSERT INTO {database}.t SELECT * REPLACE('x' AS v) FROM {database}.t WHERE id = 2 LIMIT 1")
    copy = raw_backup(it)
    with pytest.raises(StreamFailed, match="different rows of one key and version: id=2"):
        compared(it, copy)
    client.command(f"CREATE TABLE {database}.final ENGINE = Memory AS SELECT * FROM {database}.t FINAL")
    assert found(it, f"{database}.final") == (0, 0, 0)


@pytest.mark.parametrize("engine", COLLAPSING)
def test_signed_rows_of_a_raw_copy_cancel_each_other(client: Client, database: str, engine: str) -> None:
    it = hand(client, database, engine, [*CHANGES, *LATER])
    client.command(f"SYSTEM STOP MERGES {database}.t")
    it.read((0, len(CHANGES)))
    it.read_all()
    assert found(it, raw_backup(it)) == (0, 0, 0)
