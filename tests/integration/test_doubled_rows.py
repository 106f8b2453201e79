"""A key has two live rows, nobody knows why: what is written next leaves one."""

import pytest

from ch_sink.clickhouse import Client
from ch_sink.model.policy import policy_of
from ch_sink.trust.repair import repaired
from ch_sink.trust.resync import resynced
from ch_sink.trust.subject import Options
from ch_sink.trust.verify import verified
from tests.support.hand_commands import Hand, each_of, hand, made
from tests.support.hand_steps import Rows, repaired_from_source
from tests.support.hand_tables import COLLAPSING, OWN, delete, insert, row, update

pytestmark = pytest.mark.integration


def doubled(client: Client, database: str, engine: str) -> Hand:
    last = update(row(1, "b"), row(1, "c"), 130)
    it = hand(client, database, engine, [insert(1, "a", 100), update(row(1, "a"), row(1, "b"), 110), last])
    it.read((0, 2))
    found = f"SELECT * REPLACE('x' AS v, _version - 1 AS _version) FROM {database}.t FINAL"
    client.command(f"INSERT INTO {database}.t {found}")
    assert it.view() != [(1, "b")]
    return it


@pytest.mark.parametrize("engine", COLLAPSING)
def test_the_next_change_leaves_one(client: Client, database: str, engine: str) -> None:
    it = doubled(client, database, engine)
    it.read((0, 3))
    assert it.view() == [(1, "c")]


@pytest.mark.parametrize("engine", COLLAPSING)
def test_a_repair_leaves_one(client: Client, database: str, engine: str) -> None:
    it = doubled(client, database, engine)
    repaired_from_source(it, (1, "bb"))
    it.feed.at = {0: 2}
    it.read((0, 3))
    assert it.view() == [(1, "c")]


@each_of("against", ["topic", "source"], "source")
def test_a_repair_of_equal_rows_leaves_one(client: Client, database: str, against: str) -> None:
    """Both are the source's row: neither is to be lost."""
    it = hand(client, database, "versioned", [insert(1, "a", 100), insert(2, "b", 110)])
    it.read((0, 2))
    again = f"SELECT * REPLACE(_version - 1 AS _version) FROM {database}.t WHERE id = 1"
    client.command(f"INSERT INTO {database}.t {again}")
    expect_repaired(it, against)
    it.topic([insert(1, "a", 100), insert(2, "b", 110), update(row(1, "a"), row(1, "c"), 120)])
    it.feed.at = {0: 2}
    it.read((0, 3))
    assert it.view() == [(1, "c"), (2, "b")]


@each_of("engine", ["replacing", "sign"], "replacing")
@each_of("against", ["topic", "source"], "topic")
def test_a_repair_of_equal_rows_at_two_places_leaves_one(
    client: Client, database: str, engine: str, against: str
) -> None:
    """The table is sorted by a column of the user's besides the key."""
    clause, own = OWN[engine]
    columns, events = f"w String DEFAULT toString(now64(9)), {own}", [insert(1, "a", 100), insert(2, "b", 110)]
    it = made(client, database, (clause, columns), policy_of(on_bad_record="fail"), [events], "ORDER BY (id, w)")
    it.read((0, 2))
    again = f"SELECT * REPLACE('y' AS w) FROM {database}.t WHERE id = 1"
    client.command(f"INSERT INTO {database}.t {again}")
    expect_repaired(it, against)


def expect_repaired(it: Hand, against: str) -> None:
    it.source = Rows([(1, "a"), (2, "b")])
    assert it.view() == [(1, "a"), (1, "a"), (2, "b")]
    assert it.verify() == it.verify_source() == (0, 1, 0)
    done = repaired(it.subject, Options(patience=0, against=against), apply=True)  # type: ignore[arg-type]
    assert (done.rows, done.left) == (1, 0)
    assert it.view() == [(1, "a"), (2, "b")]
    assert it.verify() == it.verify_source() == (0, 0, 0)
    it.client.command(f"OPTIMIZE TABLE {it.database}.t FINAL")
    assert it.view() == [(1, "a"), (2, "b")]


@each_of("engine", COLLAPSING, "collapsing")
@pytest.mark.parametrize("case", ["doubled", "gone", "short"])
def test_signs_that_do_not_pair_are_a_difference_until_a_resync(
    client: Client, database: str, engine: str, case: str
) -> None:
    """FINAL shows the right rows: of a doubled +1 one, of a −1 of a row that is gone none, of a −1 too much the last
    row.
    """
    it = hand(client, database, engine, [insert(1, "a", 100), insert(2, "b", 110), delete(row(2, "b"), 120)])
    it.read_all()
    client.command(f"SYSTEM STOP MERGES {database}.t")
    for id_, sign, above in {"doubled": [(1, 1, 0)], "gone": [(2, -1, 0)], "short": [(1, -1, 0)] * 2 + [(1, 1, 1)]}[
        case
    ]:
        changed = f"{id_} AS id, {sign} AS _sign, toUInt128(_version + {above}) AS _version"
        again = f"SELECT * REPLACE({changed}) FROM (SELECT * FROM {database}.t WHERE id = 1 ORDER BY _version LIMIT 1)"
        client.command(f"INSERT INTO {database}.t {again}", settings={"insert_deduplicate": 0})
    assert it.view() == [(1, "a")]
    with verified(it.subject, Options(patience=0)) as found:
        assert (found.report.unpaired, found.report.equal) == (1, False)
    resynced(it.refill, apply=True, against="topic")
    with verified(it.subject, Options(patience=0)) as found:
        assert (found.report.unpaired, found.report.equal) == (0, True)
