"""`verify --against topic`: nothing differs on recorded and busy streams, and every planted difference is found."""

import pytest

from ch_sink.clickhouse import Client
from ch_sink.trust.mend import repaired
from ch_sink.trust.report import Report
from ch_sink.trust.verify import Options, Subject, verified
from tests.support.busy import ENGINES, feed_of
from tests.support.choose import each_value
from tests.support.fixtures import topic_of
from tests.support.recorded import CASES, KEYLESS, POLICY, equal
from tests.support.stream import Feed, make_table, schema_of, typed_stream
from tests.support.trust import subject_of

pytestmark = pytest.mark.integration


def report_of(subject: Subject, options: Options = Options()) -> Report:  # noqa: B008
    with verified(subject, options) as found:
        return found.report


def fed(client: Client, database: str, stream: str, table: str, engine: str = "") -> Subject:
    schema = schema_of(typed_stream(stream, table), table)
    engine = engine or ("append" if table in KEYLESS else "replacing")
    target = make_table(client, database, table, schema, engine=engine, policy=POLICY)
    feed = Feed(client, database, target, stream, topic_of(stream, table), POLICY)
    feed.run()
    return subject_of(client, database, feed, stream, tuple(f.name for f in schema.key))


@pytest.mark.parametrize(("stream", "table"), CASES)
def test_recorded_streams_are_equal(client: Client, database: str, stream: str, table: str) -> None:
    report = report_of(fed(client, database, stream, table))
    assert (report.missing, report.extra, report.different, report.changing) == (0, 0, 0, 0), report.examples
    assert client.rows(f"SELECT name FROM system.tables WHERE database = '{database}' AND name LIKE '%shadow%'") == []


PLANT = {"max_threads": 1}
SIGNED = ("collapsing", "versioned-collapsing")
ALIVE = {"replacing": "_is_deleted = 0", "append": "_sign > 0"}


class Planted:
    """The busy accounts, with differences of each kind planted by hand; ``wanted`` says what has to be found."""

    def __init__(self, client: Client, database: str, source: str, engine: str) -> None:
        self.client, self.engine, self.name = client, engine, f"{database}.acct"
        feed = feed_of(client, database, source, "acct", engine)
        feed.run()
        feed.runner.stop()
        self.subject = subject_of(client, database, feed, f"{source}-busy-json_plain", ("id", "k"))
        self.alive = ALIVE.get(engine, "_sign > 0")
        self.wanted: dict[tuple[int, int], tuple[str, tuple[str, ...]]] = {}
        live = client.rows(f"SELECT id, k FROM {self.name}_current ORDER BY sipHash64(id, k)")
        self._keys = iter([(int(r["id"]), int(r["k"])) for r in live])
        self.plant(5)

    def plant(self, each: int) -> None:
        for _ in range(each):
            self._value("n", "ifNull(n, 0) + 1")
            self._value("owner", "NULL", "owner IS NOT NULL")
            self._value("price", "toDecimal128('9999999999999999.9999', 4)", "price != 9999999999999999.9999")
            self._value("note", "concat(ifNull(note, ''), ' ')")
            self._missing()
            self._extra()
        if self.engine == "replacing":
            self._undeleted(each)

    def _value(self, column: str, value: str, condition: str = "1") -> None:
        key = next(self._keys)
        if self._rows(f"id = {key[0]} AND k = {key[1]} AND NOT ({condition})"):
            return
        # Rows of one version cancel each other there, whatever their values.
        newer = ", _version + 1 AS _version" if self.engine == "versioned-collapsing" else ""
        self._write(key, f"{value} AS {column}{newer}", gone=True)
        self.wanted[key] = ("different", (column,))

    def _missing(self) -> None:
        key = next(self._keys)
        self._write(key, None, gone=True)
        self.wanted[key] = ("missing", ())

    def _extra(self) -> None:
        key = next(self._keys)
        self._write(key, "id + 100000000 AS id", gone=False)
        self.wanted[key[0] + 100_000_000, key[1]] = ("extra", ())

    def _undeleted(self, each: int) -> None:
        """Deleted rows that live."""
        newest = f"SELECT * FROM {self.name} ORDER BY id, k, _version DESC LIMIT 1 BY id, k"
        gone = f"FROM ({newest}) WHERE _is_deleted = 1 ORDER BY id, k LIMIT {each}"
        self.wanted |= {
            (int(r["id"]), int(r["k"])): ("extra", ()) for r in self.client.rows(f"SELECT id, k {gone}")
        }
        self.client.command(
            f"INSERT INTO {self.name} SELECT * REPLACE(0 AS _is_deleted) FROM (SELECT * {gone})", settings=PLANT
        )

    def _write(self, key: tuple[int, int], changed: str | None, *, gone: bool) -> None:
        """Store the row of a key with another value under its own version; ``gone``: instead of itself."""
        rows = f"FROM (SELECT * FROM {self.name} FINAL WHERE id = {key[0]} AND k = {key[1]} AND {self.alive})"
        parts = [f"SELECT * REPLACE({changed}) {rows}"] if changed is not None else []
        if gone and (changed is None or self.engine in SIGNED):
            mark = "1 AS _is_deleted" if self.engine == "replacing" else "toInt8(-1) AS _sign"
            parts.insert(0, f"SELECT * REPLACE({mark}) {rows}")
        self.client.command(f"INSERT INTO {self.name} {' UNION ALL '.join(parts)}", settings=PLANT)

    def _rows(self, condition: str) -> int:
        return int(self.client.rows(f"SELECT count() AS n FROM {self.name}_current WHERE {condition}")[0]["n"])

    def found(self, report: Report) -> dict[tuple[int, int], tuple[str, tuple[str, ...]]]:
        return {
            (int(e.key["id"]), int(e.key["k"])): (e.kind, tuple(e.columns) if e.kind == "different" else ())
            for e in report.examples
        }


@pytest.mark.parametrize(("engine", "source"), each_value(ENGINES, ("postgres", "mariadb")))
def test_every_planted_difference_is_found_and_mended(client: Client, database: str, source: str, engine: str) -> None:
    planted = Planted(client, database, source, engine)
    report = report_of(planted.subject, Options(examples=10_000))
    assert planted.found(report) == planted.wanted
    kinds = [kind for kind, _ in planted.wanted.values()]
    assert [report.missing, report.extra, report.different] == [
        kinds.count(kind) for kind in ("missing", "extra", "different")
    ]
    before = client.rows(f"SELECT count() AS n FROM {planted.name}")
    plan = repaired(planted.subject, Options(), apply=False)
    assert (plan.rows, plan.too_new) == (len(planted.wanted), 0)
    assert client.rows(f"SELECT count() AS n FROM {planted.name}") == before
    done = repaired(planted.subject, Options(), apply=True)
    assert (done.rows, done.left) == (len(planted.wanted), 0)
    assert report_of(planted.subject).equal
    assert equal(client, database, f"{source}-busy", source, "acct") == []
