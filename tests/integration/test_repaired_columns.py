"""Repairs from the source of tables with columns that the source does not have, or not as the stream stores them."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import pytest

from ch_sink.clickhouse import Client
from ch_sink.discovery.look import examine
from ch_sink.errors import StreamFailed
from ch_sink.model.policy import policy_of
from ch_sink.trust.key import condition_of
from ch_sink.trust.repair import Repaired, repaired
from ch_sink.trust.resync import resynced
from ch_sink.trust.subject import Options, Subject
from ch_sink.trust.verify import verified
from ch_sink.types.connect import Field, RowSchema, SourceType
from tests.support.choose import some
from tests.support.hand import APPEND, ENGINES, OWN, Event, insert, key, mysql
from tests.support.hand_commands import Hand, each_of, hand, made, records
from tests.support.hand_steps import Rows, lose

pytestmark = pytest.mark.integration

EVENTS = [insert(1, "a", 10), insert(2, "b", 20)]
SOURCE = [(1, "A"), (2, "b"), (3, "c")]
PLACES = ["ORDER BY (id, v) PRIMARY KEY id", "PARTITION BY v ORDER BY id", "PARTITION BY v ORDER BY (id, v)"]


def with_third(client: Client, database: str, engine: str, events: list[Event], **policy: Any) -> Hand:
    """A table with a third column ``w``; all events are read."""
    clause, own = OWN.get(engine, APPEND)
    it = made(client, database, (clause, f"w String, {own}"), policy_of(on_bad_record="fail", **policy), [events])
    it.read((0, len(events)))
    return it


def rows(it: Hand) -> list[tuple[Any, ...]]:
    found = it.client.rows(f"SELECT id, v, w FROM {it.database}.t_current ORDER BY id")
    return [tuple(r.values()) for r in found]


def mended(it: Hand, *source: tuple[int, str | None], **options: Any) -> Repaired:
    it.source = Rows(source)
    return repaired(it.subject, Options(**{"patience": 0, "against": "source"} | options), apply=True)


@pytest.mark.long
@each_of("engine", ENGINES, "replacing", "collapsing")
def test_a_constant_column_is_repaired(client: Client, database: str, engine: str) -> None:
    it = with_third(client, database, engine, EVENTS, add=(("w", "'eu'"),))
    done = mended(it, *SOURCE)
    assert (done.rows, done.left, done.unreadable, done.report.left_out) == (2, 0, 0, ())
    assert rows(it) == [(1, "A", "eu"), (2, "b", "eu"), (3, "c", "eu")]


@pytest.mark.long
def test_a_constant_that_is_another_is_found(client: Client, database: str) -> None:
    it = with_third(client, database, "replacing", EVENTS, add=(("w", "'eu'"),))
    client.command(f"ALTER TABLE {database}.t UPDATE w = 'us' WHERE id = 2 SETTINGS mutations_sync = 2")
    it.source = Rows([(1, "a"), (2, "b")])
    assert it.verify() == it.verify_source() == (0, 0, 1)


def test_one_of_several_topics_in_a_table_is_compared_and_repaired(client: Client, database: str) -> None:
    """The constant tells its rows apart, and is in the key."""
    clause, own = OWN["replacing"]
    chosen = policy_of(on_bad_record="fail", add=(("w", "'eu'"),), source_columns=("w",))
    order = "ORDER BY (w, id)"
    it = made(client, database, (clause, f"w String, {own}"), chosen, [EVENTS], order)
    it.read((0, 2))
    client.command(f"INSERT INTO {database}.t (id, v, w, _version) VALUES (7, 'of another', 'us', 1)")
    it.source = Rows(SOURCE)
    mine = replace(it.subject, key=("w", "id"), condition="w = 'eu'")
    with verified(mine, Options(patience=0)) as found:
        assert found.report.equal
    done = repaired(mine, Options(patience=0, against="source"), apply=True)
    assert (done.report.missing, done.report.extra, done.report.different, done.left) == (1, 0, 1, 0)
    assert rows(it) == [(1, "A", "eu"), (2, "b", "eu"), (3, "c", "eu"), (7, "of another", "us")]


@each_of("engine", ENGINES, "replacing")
def test_a_masked_column_is_compared_and_repaired(client: Client, database: str, engine: str) -> None:
    own = OWN[engine]
    it = made(client, database, own, policy_of(on_bad_record="fail", mask=(("v", "sha256"),)), [EVENTS])
    it.read((0, 2))
    [before, kept] = it.view()
    it.source = Rows([(1, "a"), (2, "b")])
    assert it.verify_source() == (0, 0, 0)
    assert mended(it, *SOURCE).left == 0
    assert it.verify_source() == (0, 0, 0)
    assert it.view()[0] != before
    assert it.view()[1] == kept
    assert all(len(v) == 64 for _, v in it.view())


@dataclass
class Typed:
    """A source with these columns and rows of texts."""

    kinds: Mapping[str, str]
    now: Sequence[Sequence[str | None]]

    def position(self) -> int:
        return 0

    def settled(self, patience: float) -> int:
        return 0

    def columns(self) -> dict[str, str]:
        return dict(self.kinds)

    def rows(self, names: Sequence[str], size: int) -> Iterator[list[tuple[str | None, ...]]]:
        at = [list(self.kinds).index(name) for name in names]
        yield [tuple(row[i] for i in at) for row in self.now]

    def close(self) -> None:
        pass


TYPES: dict[str, tuple[dict[str, Any], Any, str, tuple[str, str], str]] = {
    "boolean": ({"type": "boolean"}, True, "boolean", ("t", "f"), "true"),
    "tinyint": ({"type": "boolean"}, True, "tinyint(1)", ("1", "0"), "true"),
    "double": ({"type": "double"}, 3.0, "double precision", ("3", "4"), "3.0"),
    "float": ({"type": "float"}, 1.1, "real", ("1.1", "1.2"), "1.1"),
    "date": (
        {"type": "int32", "name": "io.debezium.time.Date"}, 18628, "date", ("2021-01-01", "2021-01-02"), "2021-01-01"
    ),
    "datetime": (
        {"type": "int64", "name": "io.debezium.time.Timestamp"}, 1609459200000, "datetime",
        ("2021-01-01 00:00:00", "2021-01-01 00:00:01"), "2021-01-01 00:00:00",
    ),
    "bytes": ({"type": "bytes"}, "YWJj", "bytea", ("\\x616263", "\\x616264"), "abc"),
}  # fmt: skip
"""A masked column: its type and value in the events, its type and two values in the source, the text of the first."""


def with_mask(client: Client, database: str, case: str, *, schema: bool = True) -> tuple[Hand, Subject, str]:
    """A table of one row whose column ``w`` is masked; a command's subject, and the mask."""
    kind, value, _, _, text = TYPES[case]
    event = mysql("c", key(1), None, {"id": 1, "v": "a", "w": value}, 10)
    if schema:
        fields = [{"type": "int64", "field": "id"}, {"type": "string", "optional": True, "field": "v"}]
        row_type = {"type": "struct", "optional": True, "fields": [*fields, {**kind, "optional": True, "field": "w"}]}
        parts = [{**row_type, "field": "before"}, {**row_type, "field": "after"}, {"type": "string", "field": "op"}]
        whole = {"type": "struct", "fields": [*parts, {"type": "struct", "field": "source", "fields": []}]}
        event = replace(event, value={"schema": whole, "payload": event.value})
    it = with_third(client, database, "replacing", [event], mask=(("w", "sha256"),))
    seen = examine([records(0, [event])], "t", it.feed.policy)
    mask = hashlib.sha256(text.encode()).hexdigest()
    if schema:
        assert rows(it) == [(1, "a", mask)]
    return it, replace(it.subject, schema=seen.schema), mask


def source_of(case: str, *texts: str) -> Typed:
    kinds = {"id": "bigint", "v": "varchar", "w": TYPES[case][2]}
    return Typed(kinds, [(str(i), "a", text) for i, text in enumerate(texts, start=1)])


@pytest.mark.long
@each_of("case", TYPES, "boolean", "date")
def test_a_masked_column_of_another_type_is_compared_and_repaired(client: Client, database: str, case: str) -> None:
    it, subject, mask = with_mask(client, database, case)
    first, second = TYPES[case][3]
    it.source = source_of(case, first)
    with verified(subject, Options(patience=0, against="source")) as found:
        assert found.report.equal
        assert not found.report.left_out
    it.source = source_of(case, first, second)
    assert repaired(subject, Options(patience=0, against="source"), apply=True).left == 0
    assert [r[2] == mask for r in rows(it)] == [True, False]


@each_of("case", TYPES, "boolean")
def test_a_masked_column_of_another_type_is_filled_as_the_stream_fills_it(
    client: Client, database: str, case: str
) -> None:
    it, subject, mask = with_mask(client, database, case)
    it.source = source_of(case, TYPES[case][3][0])
    resynced(replace(it.refill, subject=subject), apply=True)
    assert rows(it) == [(1, "a", mask)]


@each_of("case", ["boolean", "tinyint", "date", "datetime", "double"], "boolean")
def test_a_masked_column_whose_text_is_not_known_is_not_compared_without_a_schema(
    client: Client, database: str, case: str
) -> None:
    it, subject, _ = with_mask(client, database, case, schema=False)
    it.source = source_of(case, TYPES[case][3][0])
    with verified(subject, Options(patience=0, against="source")) as found:
        assert found.report.equal
        assert found.report.left_out == ("w",)
    with pytest.raises(StreamFailed, match=r"column 'w' .* cannot be read as the connector sends it"):
        resynced(replace(it.refill, subject=subject), apply=True)


@pytest.mark.long
@pytest.mark.parametrize(("handling", "sent", "left_out"), [("precise", "AJY=", ("v",)), ("string", "1.50", ())])
def test_decimals_without_a_schema_are_compared_in_a_text_column_if_they_come_as_text(
    client: Client, database: str, handling: str, sent: str, left_out: tuple[str, ...]
) -> None:
    chosen = policy_of(on_bad_record="fail", decimal_handling=handling)
    it = made(client, database, OWN["replacing"], chosen, [[insert(1, sent, 10)]])
    it.read((0, 1))
    it.source = Typed({"id": "bigint", "v": "numeric(10,2)"}, [("1", "1.50")])
    with verified(it.subject, Options(patience=0, against="source")) as found:
        assert (found.report.equal, found.report.left_out) == (True, left_out)


def with_key(client: Client, database: str, kind: str, source: str) -> Hand:
    """A table whose key ends with a column of this type."""
    clause, own = OWN["replacing"]
    events = [mysql("c", {"id": 1, "w": w}, None, {"id": 1, "v": "v", "w": w}, 10) for w in "ab"]
    chosen = policy_of(on_bad_record="fail")
    it = made(client, database, (clause, f"w {kind}, {own}"), chosen, [events], "ORDER BY (id, w)")
    it.read((0, 2))
    it.source = Typed({"id": "bigint", "v": "varchar", "w": source}, [("1", "v", "a"), ("1", "V", "b")])
    return it


@each_of("kind", ["Enum8('a' = 1, 'b' = 2)", "FixedString(4)"], "FixedString(4)")
def test_a_key_of_another_kind_of_text_is_read_without_a_schema(client: Client, database: str, kind: str) -> None:
    it = with_key(client, database, kind, "varchar(4)")
    done = repaired(replace(it.subject, key=("id", "w")), Options(patience=0, against="source"), apply=True)
    assert (done.report.missing, done.report.extra, done.report.different, done.left) == (0, 0, 1, 0)
    assert [v for _, v, _ in sorted(rows(it), key=str)] == ["V", "v"]


def test_a_key_that_cannot_be_read_from_the_source_is_refused(client: Client, database: str) -> None:
    it = with_key(client, database, "String", "boolean")
    with pytest.raises(StreamFailed, match=r"the key column 'w' of .* \(boolean in the source\) cannot be read"):
        repaired(replace(it.subject, key=("id", "w")), Options(patience=0, against="source"), apply=True)


def stated(i: int, v: str, w: str, pos: int) -> Event:
    return mysql("c", key(i), None, {"id": i, "v": v, "w": w}, pos)


@pytest.mark.sampled(1)
@each_of("engine", [*ENGINES, "append"], "replacing", "collapsing")
def test_a_row_keeps_what_the_source_cannot_give(client: Client, database: str, engine: str) -> None:
    """A row that the table lacks is left alone: its other column is not known."""
    it = with_third(client, database, engine, [stated(1, "a", "one", 10), stated(2, "b", "two", 20)])
    done = mended(it, *SOURCE)
    assert (done.rows, done.left, done.unreadable, done.report.left_out) == (1, 0, 1, ("w",))
    assert rows(it) == [(1, "A", "one"), (2, "b", "two")]


@pytest.mark.long
def test_a_row_that_may_move_is_left_alone_if_the_source_does_not_give_all_of_it(client: Client, database: str) -> None:
    clause, own = OWN["replacing"]
    events = [stated(1, "a", "one", 10), stated(2, "b", "two", 20)]
    columns = f"w String, {own}"
    it = made(client, database, (clause, columns), policy_of(on_bad_record="fail"), [events], PLACES[0])
    it.read((0, 2))
    done = mended(it, *SOURCE)
    assert (done.rows, done.left, done.unreadable) == (0, 0, 2)
    assert rows(it) == [(1, "a", "one"), (2, "b", "two")]


@pytest.mark.long
@each_of("engine", [*ENGINES, "append"], "collapsing")
@pytest.mark.parametrize("against", ["source", "topic"])
def test_a_row_that_meets_the_condition_on_one_side_differs(
    client: Client, database: str, engine: str, against: str
) -> None:
    it = hand(client, database, engine, [insert(1, "b", 10), insert(2, "b", 20), insert(3, "c", 30)])
    it.read((0, 3))
    client.command(f"ALTER TABLE {database}.t UPDATE v = 'x' WHERE id = 1 SETTINGS mutations_sync = 2")
    client.command(f"ALTER TABLE {database}.t UPDATE v = 'y' WHERE id = 3 SETTINGS mutations_sync = 2")
    done = mended(it, (1, "b"), (2, "b"), (3, "c"), against=against, condition="v IN ('x', 'b')")
    assert (done.report.missing, done.report.extra, done.report.different) == (0, 0, 1)
    assert it.view() == [(1, "b"), (2, "b"), (3, "y")]


@pytest.mark.long
def test_a_condition_is_told_of_columns_that_are_not_compared(client: Client, database: str) -> None:
    """Else rows that the table lacks would not meet it."""
    it = with_third(client, database, "replacing", [stated(1, "a", "one", 10), stated(2, "b", "two", 20)])
    lose(it, 2)
    it.source = Typed({"id": "bigint", "v": "varchar", "w": "varchar"}, [("1", "a", "one"), ("2", "b", "two")])
    options = Options(patience=0, against="source", columns=("w",), condition="v = 'b'")
    with verified(it.subject, options) as found:
        assert (found.report.missing, found.report.extra, found.report.different) == (1, 0, 0)


def test_a_chosen_column_that_the_source_cannot_give_is_named_as_not_compared(client: Client, database: str) -> None:
    it = with_third(client, database, "replacing", [stated(1, "a", "one", 10)])
    it.source = Rows([(1, "a")])
    with verified(it.subject, Options(patience=0, against="source", columns=("w",))) as found:
        assert found.report.left_out == ("w",)


def test_a_condition_on_a_column_that_the_source_cannot_give_is_refused(client: Client, database: str) -> None:
    it = with_third(client, database, "replacing", [stated(1, "a", "one", 10)])
    it.source = Rows([(1, "a")])
    with (
        pytest.raises(StreamFailed, match="--where names column 'w', which cannot be read from the source"),
        verified(it.subject, Options(patience=0, against="source", condition="w = 'one'")),
    ):
        pass


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("policy", "options", "lacking"),
    [
        ({}, {}, ("w", "x-y")),
        ({"exclude": ("w",)}, {}, ("x-y",)),
        ({"exclude": ("w", "x-y")}, {}, ()),
        ({"rename": (("x-y", "v"), ("v", "old"))}, {}, ("v", "w")),
        ({"evolve": "ignore"}, {}, ()),
        ({}, {"columns": ("v",)}, ()),
    ],
)
def test_a_column_that_only_the_source_has_is_named_and_the_table_is_not_equal(
    client: Client, database: str, policy: dict[str, Any], options: dict[str, Any], lacking: tuple[str, ...]
) -> None:
    """No event has come since the column was added. Columns that are not wanted are not difference."""
    clause, own = OWN["replacing"]
    chosen = policy_of(on_bad_record="fail", **policy)
    it = made(
        client,
        database,
        (clause, own),
        replace(chosen, changes=replace(chosen.changes, evolve="ignore")),
        [[insert(1, "a", 10)]],
    )
    it.read((0, 1))
    kinds = {"id": "bigint", "v": "varchar", "w": "varchar", "x-y": "int", "z": "computed int"}
    it.source = Typed(kinds, [("1", "a", "new", "a", "3")])
    settings = replace(it.subject.settings, policy=chosen)
    with verified(replace(it.subject, settings=settings), Options(patience=0, against="source", **options)) as found:
        assert (found.report.lacking, found.report.equal) == (lacking, not lacking)
        assert found.report.left_out == ()


def test_a_column_whose_name_avro_does_not_allow_is_compared(client: Client, database: str) -> None:
    clause, own = OWN["replacing"]
    it = made(client, database, (clause, f"w_x String, {own}"), policy_of(on_bad_record="fail"), [[insert(1, "a", 10)]])
    it.read((0, 1))
    for value, differ in (("", 0), ("another", 1)):
        it.source = Typed({"id": "bigint", "v": "varchar", "w-x": "varchar"}, [("1", "a", value)])
        with verified(it.subject, Options(patience=0, against="source")) as found:
            report = found.report
        assert (report.lacking, report.left_out, report.different) == ((), (), differ)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("default", "causes"), [(7, ["column n: the table has the column's default"]), (8, []), (None, [])]
)
def test_a_default_in_the_place_of_null_is_explained(
    client: Client, database: str, default: int | None, causes: list[str]
) -> None:
    clause, own = OWN["replacing"]
    events = [insert(1, "a", 10, n=7), insert(2, "a", 20, n=7)]
    it = made(client, database, (clause, f"n Nullable(Int32), {own}"), policy_of(on_bad_record="fail"), [events])
    it.read((0, 2))
    it.source = Typed({"id": "bigint", "v": "varchar", "n": "int"}, [("1", "a", None), ("2", "a", "8")])
    n = SourceType("int32", default=default, has_default=True)
    schema = RowSchema((Field("id", SourceType("int64")), Field("v", SourceType("string")), Field("n", n)), ())
    with verified(replace(it.subject, schema=schema), Options(patience=0, against="source")) as found:
        assert found.report.different == 2
        assert [cause.partition(" where")[0] for cause in found.report.causes] == causes


@pytest.mark.parametrize(("other", "apply"), some(product(([], [(7, "x"), (8, "y")]), (False, True)), [([], True)]))
def test_a_table_is_not_emptied_after_a_source_that_has_none_of_its_rows(
    client: Client, database: str, other: list[tuple[int, str]], apply: bool
) -> None:
    it = hand(client, database, "replacing", EVENTS)
    it.read((0, 2))
    it.source = Rows(other)
    with pytest.raises(StreamFailed, match=r"none of the 2 rows of .* is in the source") as caught:
        repaired(it.subject, Options(patience=0, against="source"), apply=apply)
    assert "ch_sink repair CONFIG --where true --apply" in (caught.value.hint or "")
    assert len(it.view()) == 2
    it.source = Rows([(1, "a")])
    assert repaired(it.subject, Options(patience=0, against="source"), apply=True).left == 0
    assert len(it.view()) == 1
    it.source = Rows(other)
    assert repaired(it.subject, Options(patience=0, against="source", condition="true"), apply=True).left == 0
    assert it.view() == other


@pytest.mark.long
def test_a_key_names_one_row(client: Client, database: str) -> None:
    it = hand(client, database, "replacing", EVENTS)
    it.read((0, 2))
    it.source = Rows([(1, "other"), (2, "other")])
    options = Options(patience=0, against="source", condition=condition_of(it.subject, {"id": 2}))
    assert repaired(it.subject, options, apply=True).rows == 1
    assert it.view() == [(1, "a"), (2, "other")]
    for other in ({"v": "a"}, {"id": 1, "v": "a"}):
        with pytest.raises(StreamFailed, match=r"the key of .* is \(id\)"):
            condition_of(it.subject, other)
    with pytest.raises(StreamFailed, match="has no key"):
        condition_of(replace(it.subject, key=()), {"id": 2})
