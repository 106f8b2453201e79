"""Commands beside something else: rows go, streams are behind, other comparisons and late statements run."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import islice

import pytest

from ch_sink.clickhouse import ClickHouseLedger, Client
from ch_sink.clickhouse.table_admin import ClickHouseTableAdmin
from ch_sink.errors import ChSinkError, StreamFailed
from ch_sink.model.policy import policy_of
from ch_sink.ports import Fence
from ch_sink.trust.repair import repaired
from ch_sink.trust.report import Report, lines, page
from ch_sink.trust.resync import resynced
from ch_sink.trust.shadow import shadow_of, shadow_tables
from ch_sink.trust.subject import Options
from ch_sink.trust.verify import FOUND, Comparison, verified
from ch_sink.types.connect import Field, RowSchema, SourceType
from tests.support.hand import insert, key, postgres, row
from tests.support.hand_commands import Hand, hand
from tests.support.hand_steps import Rows, lose, plant
from tests.support.plan_words import parts
from tests.support.stream import make_table

pytestmark = pytest.mark.integration


@pytest.mark.long
def test_a_report_names_the_rows_that_are_still_there(client: Client, database: str) -> None:
    it = hand(client, database, "replacing", [insert(1, "a", 10), insert(2, "b", 20)])
    it.read_all()
    plant(it, 9, like=1)
    client.command(f"ALTER TABLE {database}.t UPDATE v = 'x' WHERE id < 3 SETTINGS mutations_sync = 2")
    with verified(it.subject, Options(patience=0)) as found:
        assert (found.report.extra, found.report.different, found.report.columns) == (1, 2, {"v": 2})
        lose(it, 1, 9)
        again = Report.of(found.differences, FOUND, 10, stream="s", table=it.subject.table, against="topic", rows=1)
    assert again.columns == {"v": 1}
    assert sorted((e.kind, e.key["id"], tuple(e.columns)) for e in again.examples) == [
        ("different", 1, ("v",)),
        ("different", 2, ("v",)),
    ]


BELOW = [postgres("c", key(1), None, row(1, "a"), 5, 6)] * 40


def test_a_first_change_that_comes_during_the_comparison_is_not_repaired_away(client: Client, database: str) -> None:
    it = hand(client, database, "replacing", BELOW)
    it.source = Rows([(1, "a"), (2, "b")])
    resynced(it.refill, apply=True)

    def change() -> None:
        if len(it.feed.records[0]) == len(BELOW):
            it.topic([*BELOW, postgres("u", key(1), row(1, "a"), row(1, "z"), 20, 20)])
            it.read_all()

    it.source = Rows([(1, "a"), (2, "b")], then=change)
    done = repaired(it.subject, Options(patience=0, against="source"), apply=True)
    assert done.rows == 0
    assert it.view() == [(1, "z"), (2, "b")]


Begin = Callable[[Hand], None]


@pytest.fixture
def begin(client: Client, monkeypatch: pytest.MonkeyPatch) -> Iterator[Begin]:
    """Another host begins to compare the table."""
    with ExitStack() as other:

        def begun(it: Hand) -> None:
            with monkeypatch.context() as elsewhere:
                elsewhere.setattr(socket, "gethostname", lambda: "elsewhere")
                subject = it.subject
                shape = shadow_of(subject.table, subject.database, subject.key, subject.columns)
                other.enter_context(shadow_tables(client, shape))

        yield begun


def test_a_comparison_whose_rows_another_one_has_replaced_says_nothing(
    client: Client, database: str, begin: Begin
) -> None:
    it = hand(client, database, "replacing", [insert(1, "a", 10), insert(2, "b", 20)])
    it.read_all()

    def say(text: str) -> None:
        if text == "comparing checksums":
            begin(it)

    with pytest.raises(StreamFailed, match="another comparison"), verified(it.subject, Options(patience=0), say):
        pass


def test_a_repair_whose_rows_another_comparison_has_replaced_writes_nothing(
    client: Client, database: str, begin: Begin
) -> None:
    it = hand(client, database, "replacing", [insert(1, "a", 10), insert(2, "b", 20)])
    it.read_all()
    lose(it, 1)

    def say(text: str) -> None:
        if text.startswith("writing"):
            begin(it)

    with pytest.raises(StreamFailed, match="another comparison"):
        repaired(it.subject, Options(patience=0), apply=True, say=say)
    assert it.view() == [(2, "b")]


EVENTS = [insert(1, "a", 100), insert(2, "b", 110), insert(3, "c", 120)]


def report_of(it: Hand) -> Report:
    with verified(it.subject, Options(patience=0, against="source")) as found:
        return found.report


@pytest.mark.long
def test_the_report_says_how_far_behind_the_stream_is(client: Client, database: str) -> None:
    it = hand(client, database, "replacing", EVENTS)
    it.source = Rows([(1, "a"), (2, "b"), (3, "c")])
    it.read((0, 1))
    late = report_of(it)
    assert (late.missing, late.lag, late.as_json()["lag"]) == (2, 2, 2)
    assert any("2 offsets behind its topic" in line for line in lines(late))
    assert "2 offsets behind its topic" in page([late])
    it.read_all()
    done = report_of(it)
    assert (done.equal, done.lag, done.lagging) == (True, 0, "")


def test_a_row_that_is_lost_is_not_said_to_be_late(client: Client, database: str) -> None:
    it = hand(client, database, "replacing", EVENTS)
    it.source = Rows([(1, "a"), (2, "b"), (3, "c"), (4, "lost")])
    it.read_all()
    found = report_of(it)
    assert (found.missing, found.lagging) == (1, "")


def test_a_comparison_that_waits_lets_others_go_on_meanwhile(client: Client, database: str) -> None:
    it = hand(client, database, "replacing", EVENTS)
    it.source = Rows([(1, "a"), (2, "b"), (3, "c")])
    it.read((0, 1))
    options = Options(patience=120, against="source")
    with closing(Comparison(it.subject, options, lambda _: None)) as comparison:
        steps = comparison.steps()
        next(steps)
        it.read_all()
        assert len(list(islice(steps, 20))) < 20
        assert (comparison.report.equal, comparison.report.lag) == (True, 0)


def stored(client: Client, database: str) -> Hand:
    it = hand(client, database, "collapsing", [insert(1, "a", 100), insert(2, "b", 110)])
    it.read_all()
    return it


@contextmanager
def still_running(client: Client, database: str, fence: Fence) -> Iterator[None]:
    """A statement of this execution, whose answer did not come, cancels both rows within the next seconds."""
    slow = (
        f"INSERT INTO {database}.t (id, v, _version, _sign) SELECT id, v, _version, -1 FROM {database}.t "
        "WHERE sleepEachRow(0.7) = 0"
    )

    def run() -> None:
        with suppress(ChSinkError):
            client.command(slow, again=False, query_id=fence.query_id)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        running = f"SELECT count() AS n FROM system.processes WHERE position(query, '{database}.t (id') > 0"
        while client.rows(running)[0]["n"] < 2:  # itself, and the question
            assert thread.is_alive()
        yield
    finally:
        thread.join()


def sums(client: Client, database: str) -> list[int]:
    found = client.rows(f"SELECT toInt64(sum(_sign)) AS n FROM {database}.t GROUP BY id ORDER BY id")
    return [int(row["n"]) for row in found]


def test_a_truncate_ends_an_earlier_one_that_still_runs(client: Client, database: str, own_tables: str) -> None:
    it = stored(client, database)
    ledger = ClickHouseLedger(client, own_tables, "ledger", f"late_{database}")
    claim = ledger.claim("run")
    admin = ClickHouseTableAdmin(client, database, "t", policy_of(truncate="apply"))
    with still_running(client, database, ledger.begin("id", 0, claim, "earlier")):
        admin.truncate(it.feed.admin.table, 1 << 120, "_version", lambda: [ledger.begin("id", 0, claim, "later")])
    assert (it.view(), sums(client, database)) == ([], [0, 0])


@pytest.mark.parametrize("engine", ["replacing", "sign-replacing", "versioned-collapsing"])
def test_a_truncate_deletes_the_rows_of_any_number_of_partitions(
    client: Client, database: str, own_tables: str, engine: str
) -> None:
    """A server accepts a hundred partitions in one INSERT, unless it is asked for more."""
    key = Field("id", SourceType("int64", optional=False))
    policy = policy_of(truncate="apply")
    table = make_table(
        client, database, "t", RowSchema((key,), (key,)), engine=engine, policy=policy, partition_by="id"
    )
    own = "0, 1" if engine == "replacing" else "1, 1"
    mark = "_is_deleted" if engine == "replacing" else "_sign"
    client.command(
        f"INSERT INTO {database}.t (id, {mark}, _version) SELECT number, {own} FROM numbers(150) "
        "SETTINGS max_partitions_per_insert_block = 0"
    )
    ledger = ClickHouseLedger(client, own_tables, "ledger", f"many_{database}")
    claim = ledger.claim("run")
    admin = ClickHouseTableAdmin(client, database, "t", policy)
    admin.truncate(table, 1 << 60, "_version", lambda: [ledger.begin("id", 0, claim, "truncate")])
    assert client.rows(f"SELECT count() AS n FROM {database}.t_current") == [{"n": 0}]


def test_a_repair_ends_an_earlier_one_that_still_runs(client: Client, database: str) -> None:
    it = stored(client, database)
    it.source = Rows([])
    subject = it.subject
    topic = subject.topic.state(subject.settings.topic)
    claim = subject.ledger.claim("repair-earlier")
    earlier = subject.ledger.begin(topic.topic_id, 0, claim, "repair")
    subject.ledger.release()
    with still_running(client, database, earlier):
        repaired(subject, Options(patience=0, against="source", condition="true"), apply=True)
    assert (it.view(), sums(client, database)) == ([], [0, 0])


@pytest.mark.parametrize(
    ("key", "said"), [(None, "NULL in the key column 'id'"), (1 << 63, "column 'id' of the source")]
)
def test_a_key_of_the_source_that_the_table_cannot_hold_is_not_stored_as_another(
    client: Client, database: str, key: int | None, said: str
) -> None:
    """The stream makes its events dead letters; a repair would store it as the row 0, or as the largest number."""
    it = hand(client, database, "collapsing", [insert(1, "a", 100)], out_of_range="clamp")
    it.read_all()
    it.source = Rows([(1, "a"), (key, "b")])
    before = it.view()
    with pytest.raises(StreamFailed, match=said):
        repaired(it.subject, Options(patience=0, against="source"), apply=True)
    assert it.view() == before


def test_a_report_says_that_the_topic_had_several_connectors(client: Client, database: str) -> None:
    """The source is one database: the rows of the others count as extra."""
    it = hand(client, database, "replacing", *parts("+1=a@db1/10 +2=b@db2/20"))
    it.read_all()
    it.source = Rows([(1, "a")])
    with verified(it.subject, Options(patience=0, against="source")) as done:
        assert done.report.extra == 1
        assert any("events of the connectors" in text for text in done.report.notes)
