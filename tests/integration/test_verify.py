"""`verify`: nothing differs on recorded and busy streams, and every planted difference is found."""

import os
import re
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import pytest

from ch_sink.clickhouse import Client
from ch_sink.errors import ChSinkError, StreamFailed
from ch_sink.model.policy import ColumnPolicy
from ch_sink.ports import Compared, Fact, RangeIntent
from ch_sink.snapshot.reader import Value
from ch_sink.stream import standing
from ch_sink.stream.claims import born
from ch_sink.table.spec import chosen_schema
from ch_sink.trust.continuous import Rotation, compared
from ch_sink.trust.fold import Fold
from ch_sink.trust.repair import repaired
from ch_sink.trust.report import Report, lines
from ch_sink.trust.subject import Options, Subject, states_at
from ch_sink.trust.topic import StoppableTopic
from ch_sink.trust.verify import verified
from ch_sink.wiring.process import Stopped
from tests.support.busy import ENGINES, feed_of
from tests.support.choose import some
from tests.support.fixtures import TruthTable, read_truth, topic_of
from tests.support.hand import insert
from tests.support.hand_commands import hand
from tests.support.plan_words import parts
from tests.support.recorded import CASES, CHANGED, KEYLESS, POLICY, equal, one_encoding_each
from tests.support.stream import Feed, make_table, schema_of, typed_stream
from tests.support.trust import recorded_subject, subject_of

pytestmark = pytest.mark.integration

SHORT = [case for case in one_encoding_each(CASES) if case[1] in ("all_types", "kc", "tr", "oddkey", "nopk", "toast_d")]
"""Tables of all types, of key changes, truncates and left-out values, with an odd key and without one."""


def report_of(subject: Subject, options: Options = Options()) -> Report:  # noqa: B008
    with verified(subject, options) as found:
        return found.report


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("stream", "table"), some(CASES, SHORT))
def test_recorded_streams_are_equal(client: Client, database: str, stream: str, table: str) -> None:
    report = report_of(recorded_subject(client, database, stream, table))
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
        self.wanted |= {(int(r["id"]), int(r["k"])): ("extra", ()) for r in self.client.rows(f"SELECT id, k {gone}")}
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


@pytest.mark.parametrize(
    ("engine", "source"),
    some(
        product(ENGINES, ("postgres", "mariadb")),
        [("versioned-collapsing", "mariadb")],
    ),
)
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


class Behind:
    """The ledger of a stream in the middle of a batch: only part of what the table has is recorded as applied."""

    def __init__(self, feed: Feed, offsets: int) -> None:
        self.feed, self.offsets = feed, offsets

    def last_claim(self) -> None:
        return None

    def progress(self, topic_id: str) -> dict[int, int]:
        return {p: max(0, end - self.offsets) for p, end in self.feed.at.items()}

    def open_intents(self, topic_id: str) -> list[RangeIntent]:
        return [
            RangeIntent(self.feed.topic, topic_id, p, start, self.feed.at[p])
            for p, start in self.progress(topic_id).items()
        ]

    def facts(self, kind: type[Fact]) -> list[Fact]:
        return []

    def topic_ids(self) -> list[str]:
        return []


@pytest.mark.parametrize(
    ("source", "engine"), some([("postgres", "collapsing"), ("mariadb", "replacing")], [("mariadb", "replacing")])
)
def test_rows_that_change_meanwhile_are_no_difference(client: Client, database: str, source: str, engine: str) -> None:
    feed = feed_of(client, database, source, "acct", engine)
    for partition, end in feed.ends.items():
        feed.chunk(partition, end * 2 // 3)
    whole = subject_of(client, database, feed, f"{source}-busy-json_plain", ("id", "k"))
    behind = replace(whole, ledger=Behind(feed, 150))  # type: ignore[arg-type]
    report = report_of(behind, Options(patience=0))
    assert report.equal, report.examples
    assert report.changing > 20
    before = Compared(7.0, 5.0, "topic")
    assert compared([report], 10.0, 11.0, before).equal_up_to == 5.0
    assert any("has not finished" in line for line in lines(report))
    client.command(
        f"INSERT INTO {database}.acct SELECT * REPLACE(id + 100000000 AS id) FROM {database}.acct FINAL LIMIT 1"
    )
    assert report_of(behind, Options(patience=0)).extra == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("engine", "source"),
    some(product(("replacing", "append", "versioned-collapsing"), ("mariadb", "postgres")), [("replacing", "mariadb")]),
)
def test_changes_after_a_repair_win(client: Client, database: str, engine: str, source: str) -> None:
    feed = feed_of(client, database, source, "acct", engine)
    for partition, end in feed.ends.items():
        feed.chunk(partition, end // 2)
    feed.runner.stop()
    rows = f"FROM (SELECT * FROM {database}.acct FINAL)" if engine != "append" else f"FROM {database}.acct"
    sign = " UNION ALL SELECT * REPLACE(toInt8(-1) AS _sign) " + rows if engine == "versioned-collapsing" else ""
    client.command(f"INSERT INTO {database}.acct SELECT * REPLACE(7 AS n, _version + 1 AS _version) {rows}{sign}")
    subject = subject_of(client, database, feed, f"{source}-busy-json_plain", ("id", "k"))
    assert not report_of(subject).equal
    assert repaired(subject, Options(), apply=True).left == 0
    assert report_of(subject).equal
    feed.run()
    assert equal(client, database, f"{source}-busy", source, "acct") == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("stream", ["mariadb-json_schema", "postgres-json_schema"])
def test_rows_without_a_key_are_counted(client: Client, database: str, stream: str) -> None:
    table = "nopk"
    subject = recorded_subject(client, database, stream, table)
    name = subject.table.qualified
    columns = ", ".join(c.name for c in subject.columns)
    for sign, a in ((1, "a + 7"), (-1, "a")):
        client.command(
            f"INSERT INTO {name} ({columns}, _op, _sign, _version) SELECT * REPLACE({a} AS a), 'u', {sign}, 1 "
            f"FROM (SELECT {columns} FROM {database}.{table}_current ORDER BY a LIMIT 1)"
        )
    report = report_of(subject)
    assert (report.missing, report.extra, report.different) == (1, 1, 0)


@pytest.mark.long
def test_a_row_above_all_versions_is_left_alone(client: Client, database: str) -> None:
    feed = feed_of(client, database, "postgres", "acct", "replacing")
    feed.run()
    subject = subject_of(client, database, feed, "postgres-busy-json_plain", ("id", "k"))
    name = f"{database}.acct"
    client.command(f"INSERT INTO {name} SELECT * REPLACE(7 AS n, toUInt128(-1) AS _version) FROM {name} FINAL LIMIT 1")
    done = repaired(subject, Options(), apply=True)
    assert (done.rows, done.too_new, done.report.different) == (0, 1, 1)


def test_a_comparison_that_is_to_stop_leaves_nothing(client: Client, database: str) -> None:
    feed = feed_of(client, database, "mariadb", "acct", "replacing")
    feed.run()
    subject = subject_of(client, database, feed, "mariadb-busy-json_plain", ("id", "k"))
    shadows = f"SELECT name FROM system.tables WHERE database = '{database}' AND name LIKE '%__ch_sink_shadow%'"

    def stop() -> None:
        if client.rows(shadows):
            raise Stopped

    with pytest.raises(Stopped):
        report_of(replace(subject, topic=StoppableTopic(subject.topic, stop)))
    assert client.rows(shadows) == []


def test_a_running_job_keeps_its_collapsing_table_to_itself(
    client: Client, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing, "_UNHEARD", 0.2)
    feed = feed_of(client, database, "mariadb", "acct", "collapsing")
    feed.run()
    subject = subject_of(client, database, feed, "mariadb-busy-json_plain", ("id", "k"))
    with pytest.raises(StreamFailed, match="does not pause"):
        repaired(subject, Options(), apply=True)
    assert repaired(subject, Options(), apply=False).rows == 0


def test_what_a_killed_run_left_is_dropped_and_a_living_one_is_respected(client: Client, database: str) -> None:
    subject = recorded_subject(client, database, "mariadb-json_schema-kc", "kc")
    shadow = f"{database}.kc__ch_sink_shadow"
    made = f"CREATE TABLE {shadow} (a UInt8) ENGINE = Memory COMMENT"
    client.command(f"{made} 'made by {socket.gethostname()} 999999 1'")
    assert report_of(subject).equal
    client.command(f"{made} 'made by {socket.gethostname()} {os.getppid()} {born(os.getppid())}'")
    with pytest.raises(StreamFailed, match="verifying or repairing this table now"):
        report_of(subject)


def test_a_comparison_waits_for_the_database_that_is_behind(client: Client, database: str) -> None:
    it = hand(client, database, "replacing", *parts("+1=a@db1/1000 +2=b@db2/20"))
    it.read((0, 2))
    subject = it.subject
    [(_, (_, state))] = states_at(subject, "id", {0: 2}).items()
    own = state.sources["srv/db2"].commit
    assert 0 < own < state.sources["srv/db1"].commit
    # Positions that are followed beside versions by offset say nothing of what the rows show.
    for ordered, reached in ((state, own), (replace(state, strategy="kafka_offset"), 0)):
        fold = Fold(client, subject.table, subject.settings, subject.topic, subject.decoder)
        fold.begin({0: 2}, {0: (2, ordered)})
        assert fold.commit() == reached
        fold.close()


WITH_TYPES = [(stream, table) for stream, table in CASES if stream.endswith(("json_schema", "avro", "json_plain"))]
WITH_SCHEMA = [(stream, table) for stream, table in WITH_TYPES if not stream.endswith("plain")]


@dataclass
class FinalRows:
    """A source that has the rows of a recorded truth."""

    source: str
    truth: TruthTable

    def position(self) -> int:
        return 1

    def columns(self) -> dict[str, str]:
        return {str(c["name"]): str(c["type"]) for c in self.truth.columns}

    def rows(self, names: Sequence[str], size: int) -> Iterator[list[tuple[Value, ...]]]:
        kinds = self.columns()
        at = [self.truth.names.index(name) for name in names]
        yield [
            tuple(self._as_read(kinds[n], row[i]) for n, i in zip(names, at, strict=True)) for row in self.truth.rows
        ]

    def _as_read(self, kind: str, text: str | None) -> Value:
        binary = re.match(r"(binary|varbinary|\w*blob|bytea)\b", kind)
        if text is not None and self.source == "mariadb" and kind.startswith("bit("):
            return int(text, 2).to_bytes(-(-len(text) // 8), "big")
        if text is not None and self.source == "mariadb" and kind == "point":
            x, y = map(float, text.removeprefix("POINT(").removesuffix(")").split())
            return bytes(4) + struct.pack("<BIdd", 1, 1, x, y)
        if text is None or not binary:
            return text
        return "\\x" + text.removeprefix("\\x") if self.source == "postgres" else bytes.fromhex(text)

    def close(self) -> None:
        pass


def subject(client: Client, database: str, stream: str, table: str, *, masked: bool = False) -> Subject:
    """``masked``: all columns outside the key."""
    source = stream.split("-")[0]
    schema = schema_of(typed_stream(stream, table), table)
    engine = "append" if table in KEYLESS else "replacing"
    keys = [f.name for f in schema.key]
    chosen = ColumnPolicy(mask=tuple((f.name, "sha256") for f in schema.fields if masked and f.name not in keys))
    schema, policy = chosen_schema(schema, chosen), replace(POLICY, columns=chosen)
    target = make_table(client, database, table, schema, engine=engine, policy=policy)
    feed = Feed(client, database, target, stream, topic_of(stream, table), policy)
    feed.run()
    made = subject_of(client, database, feed, stream, tuple(f.name for f in schema.key))
    changed = {c.column for c in CHANGED if (c.source, c.table) == (source, table)}
    if (source, table) == ("postgres", "all_types"):
        changed |= {"c_char", "c_inet"}  # the recording cast them to text, which changes them; a COPY does not
    columns = tuple(c for c in made.columns if c.name not in changed or c.name in made.key)
    reader = FinalRows(source, read_truth(source)[table])
    return replace(made, columns=columns, schema=schema, source=lambda: reader)


def source_report(wanted: Subject) -> Report:
    with verified(wanted, Options(against="source", patience=0)) as found:
        return found.report


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("stream", "table"), some(WITH_TYPES, one_encoding_each(WITH_TYPES)))
def test_what_is_read_equals_what_was_streamed(client: Client, database: str, stream: str, table: str) -> None:
    if (stream.split("-")[0], table) == ("mariadb", "oddkey"):
        pytest.skip("the connector changed values of the key")
    report = source_report(subject(client, database, stream, table))
    assert (report.missing, report.extra, report.different) == (0, 0, 0), report.examples
    dropped = ("v",) if table == "ac" else ()  # the source has it no more
    assert report.left_out == dropped


@pytest.mark.parametrize(("stream", "table"), some(WITH_SCHEMA, [("mariadb-json_schema", "nn")]))
def test_masks_of_what_is_read_equal_masks_of_what_was_streamed(
    client: Client, database: str, stream: str, table: str
) -> None:
    if table == "ac":
        pytest.skip("the stream does not mask the default of a column that was added later")
    if (stream.split("-")[0], table) == ("mariadb", "oddkey"):
        pytest.skip("the connector changed values of the key")
    wanted = subject(client, database, stream, table, masked=True)
    report = source_report(wanted)
    assert (report.missing, report.extra, report.different) == (0, 0, 0), report.examples
    assert wanted.schema is not None
    unmasked = {f.name: f.unmasked for f in wanted.schema.fields if f.unmasked is not None}
    text = {n for n, t in unmasked.items() if t.kind in ("array", "map") or (t.name or "").endswith("geometry.Point")}
    if stream.startswith("postgres"):
        text |= {n for n, t in unmasked.items() if (t.name or "").endswith("ZonedTimestamp")}
    assert set(report.left_out) <= text, "only what the connector writes in a form of its own is not compared"


def test_a_continuous_comparison_looks_at_the_table_anew_in_each_rotation(client: Client, database: str) -> None:
    """A column that came is compared; a comparison that fails, as the table is another one by then, begins again."""
    rows = [insert(1, "a", 100), insert(2, "b", 110), insert(3, "c", 120)]
    rows[2].value["after"]["n"] = 5
    it = hand(client, database, "replacing", rows, evolve="add_columns")
    it.read((0, 2))
    noted: list[Compared] = []

    def record(reports: list[Report], began: float) -> Compared:
        noted.append(compared(reports, began, 0.0, None))
        return noted[-1]

    rotation = Rotation(lambda: (it.subject, Options(patience=0)), record)
    assert rotation.step().equal
    it.read_all()
    client.command(f"ALTER TABLE {database}.t UPDATE n = 6 WHERE id = 3 SETTINGS mutations_sync = 2")
    assert (rotation.step().different, rotation.rounds) == (1, 2)
    rotation._left = [(1, 2), (2, None)]  # of a key that was another type
    rotation._key = [("id", "Int32")]
    assert (rotation.step().rows, rotation.rounds) == (3, 3)
    rotation.look = lambda: (replace(it.subject, key=("gone",)), Options(patience=0))
    with pytest.raises(ChSinkError):
        rotation.step()
    rotation.look = lambda: (it.subject, Options(patience=0))
    assert (rotation.step().different, rotation.rounds) == (1, 4)
    assert [one.differences for one in noted] == [0, 1, 1, 1]
