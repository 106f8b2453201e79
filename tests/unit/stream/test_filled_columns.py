"""A stream whose stored rows later changes would not find does not open: their place is of columns filled otherwise."""

from dataclasses import replace
from typing import Any

import pytest

from ch_sink.errors import StreamFailed
from ch_sink.memory import MemoryLedger
from ch_sink.model.counts import Counts
from ch_sink.model.policy import ColumnPolicy, DocumentPolicy, Policy, TopicProfile, policy_of
from ch_sink.order import State
from ch_sink.ports import FinishedRange, Terms
from ch_sink.stream.claims import expect_same_terms, types_of
from ch_sink.stream.ports import StreamSettings
from ch_sink.table.model import Engine, Family, TargetTable
from ch_sink.types.column import Column

REPLACING = Engine(Family.REPLACING, "ReplacingMergeTree", "_version", is_deleted_column="_is_deleted")
APPEND = Engine(Family.MERGE_TREE, "MergeTree")


def table(engine: Engine, *order: str) -> TargetTable:
    names = ("id", "v", "w", "tenant")
    columns = tuple(Column(name, "String") for name in names)
    return TargetTable("d", "t", engine, columns, sorting_key=order, place_columns=frozenset(order))


def before(key: tuple[str, ...] = ("id",), **columns: Any) -> MemoryLedger:
    """The ledger of a stream that has stored rows under this choice of columns."""
    ledger = MemoryLedger("s")
    ledger.claim("first", Terms(ColumnPolicy(**columns).origins()))
    state = State(profile=TopicProfile(key_columns=key)).to_json()
    ledger.results([FinishedRange("t", "T", 0, 0, 5, Counts(rows=5), state)])
    ledger.release()
    return ledger


def opens(ledger: MemoryLedger, there: TargetTable, **columns: Any) -> None:
    expect_same_terms("s", ledger, there, Policy(columns=ColumnPolicy(**columns)))


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ({}, {"mask": (("v", "sha256"),)}),
        ({"mask": (("v", "sha256"),)}, {"mask": (("v", "redact"),)}),
        ({"mask": (("v", "hmac-sha256"),), "mask_key": "a"}, {"mask": (("v", "hmac-sha256"),), "mask_key": "b"}),
        ({}, {"exclude": ("v",)}),
        ({"rename": (("x", "v"),)}, {}),
        ({"add": (("tenant", "'eu'"),)}, {"add": (("tenant", "'us'"),)}),
    ],
)
def test_a_column_that_places_rows_is_filled_as_before(was: dict[str, Any], now: dict[str, Any]) -> None:
    with pytest.raises(StreamFailed, match="would not find these rows") as error:
        opens(before(**was), table(REPLACING, "v", "tenant", "id"), **now)
    assert "resync" in (error.value.hint or "")
    opens(before(**was), table(REPLACING, "v", "tenant", "id"), **was)


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ({}, {"mask": (("v", "sha256"),)}),
        ({"mask": (("v", "sha256"),)}, {"mask": (("v", "redact"),)}),
        ({"mask": (("v", "hmac-sha256"),), "mask_key": "a"}, {"mask": (("v", "hmac-sha256"),), "mask_key": "b"}),
        ({}, {"rename": (("x", "v"),)}),
        ({"rename": (("x", "v"),)}, {}),
        ({"add": (("tenant", "'eu'"),)}, {"add": (("tenant", "'us'"),)}),
        ({"add": (("tenant", "'eu'"),)}, {}),
        ({"exclude": ("v",)}, {}),
    ],
)
@pytest.mark.parametrize("engine", [REPLACING, APPEND])
def test_any_other_column_is_filled_as_before_or_all_rows_anew(
    engine: Engine, was: dict[str, Any], now: dict[str, Any]
) -> None:
    there = table(engine, "id")
    with pytest.raises(StreamFailed, match="rows that do not change would stay as they are") as error:
        opens(before(**was), there, **now)
    assert "resync" in (error.value.hint or "")
    opens(before(**was), there, **was)


def test_a_column_that_the_table_lacks_holds_up_no_stream() -> None:
    """A file of many topics names columns that only some tables have, or will have."""
    there = table(REPLACING, "id")
    for chosen in ({"mask": (("phone", "sha256"),)}, {"rename": (("phone", "tel"),)}, {"add": (("zone", "'a'"),)}):
        opens(before(), there, **chosen)
        opens(before(**chosen), there)
    with pytest.raises(StreamFailed, match="'email', which would be filled with column v"):
        opens(before(), there, rename=(("v", "email"),))
    with pytest.raises(StreamFailed, match="nothing in the column 'phone'"):
        opens(before(exclude=("phone",)), there)
    with pytest.raises(StreamFailed, match="nothing in the column 'tel', which would be filled with column phone"):
        opens(before(exclude=("phone",)), there, rename=(("phone", "tel"),))


@pytest.mark.parametrize("now", [{"exclude": ("v",)}, {"add": (("tenant", "'eu'"),)}])
def test_a_column_may_be_left_out_from_now_on_or_get_a_constant_which_is_its_default(now: dict[str, Any]) -> None:
    opens(before(), table(REPLACING, "id"), **now)


def test_a_field_that_the_connector_adds_is_filled_from_the_topic() -> None:
    """Stored rows lack it, and the source has no such column. Named or not, it is filled if the table has it."""
    asks, there = policy_of(meta_columns=("w",)), table(REPLACING, "id")
    with pytest.raises(StreamFailed, match="a field that the connector adds") as error:
        expect_same_terms("s", before(), there, asks)
    assert "resync CONFIG --against topic" in (error.value.hint or "")
    ledger = before()
    ledger.claim("second", Terms(asks.origins()))
    ledger.release()
    for policy in (asks, Policy()):
        expect_same_terms("s", ledger, there, policy)


def test_rows_without_a_key_are_found_by_all_of_their_values() -> None:
    there = table(APPEND)
    with pytest.raises(StreamFailed, match="in the column 'w'"):
        opens(before(key=(), exclude=("w",)), there)
    with pytest.raises(StreamFailed, match="in the column 'w'"):
        opens(before(key=()), there, exclude=("w",))
    opens(before(), there, exclude=("w",))


@pytest.mark.parametrize(
    ("was", "now", "missed"),
    [
        ({}, {"keys": "typed"}, "would not find these rows"),
        ({"keys": "typed"}, {}, "would not find these rows"),
        ({"columns": (("w", "a.b"),)}, {"columns": (("w", "c"),)}, "would stay as they are"),
        ({"columns": (("w", "a.b"),)}, {}, "would stay as they are"),
        ({}, {"columns": (("w", "a.b"),)}, "would stay as they are"),
        ({}, {"column": "w"}, "would stay as they are"),
        ({"column": "w"}, {}, "would stay as they are"),
    ],
)
@pytest.mark.parametrize("engine", [REPLACING, APPEND])
def test_documents_are_read_as_before(engine: Engine, was: dict[str, Any], now: dict[str, Any], missed: str) -> None:
    ledger = before()
    ledger.claim("second", Terms(Policy(documents=DocumentPolicy(**was)).origins()))
    ledger.release()
    with pytest.raises(StreamFailed, match=missed):
        expect_same_terms("s", ledger, table(engine, "_id"), Policy(documents=DocumentPolicy(**now)))
    expect_same_terms("s", ledger, table(engine, "_id"), Policy(documents=DocumentPolicy(**was)))


@pytest.mark.parametrize("engine", [REPLACING, APPEND])
def test_a_field_that_becomes_a_column_has_no_value_in_stored_documents(engine: Engine) -> None:
    """Whatever its name: a document table has the columns that somebody chose."""
    named, ledger = Policy(documents=DocumentPolicy(columns=(("v", "v"),))), before()
    with pytest.raises(StreamFailed, match="nothing in the column 'v', which would be filled with field v now"):
        expect_same_terms("s", ledger, table(engine, "_id"), named)
    ledger.claim("second", Terms(named.origins()))
    ledger.release()
    for policy in (named, Policy()):
        expect_same_terms("s", ledger, table(engine, "_id"), policy)


KINDS = {"decimal_handling": "Decimal(9, 2)", "time_precision": "DateTime64(3)", "binary_handling": "String"}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("decimal_handling", "string"),
        ("time_precision", "connect"),
        ("binary_handling", "hex"),
        ("out_of_range", "clamp"),
    ],
)
@pytest.mark.parametrize(("engine", "key"), [(REPLACING, ("id",)), (APPEND, ()), (APPEND, ("id", "v"))])
def test_columns_that_place_rows_are_read_as_before(
    setting: str, value: str, engine: Engine, key: tuple[str, ...]
) -> None:
    """Plain JSON does not say what a number or a text means: the settings do."""
    columns = (Column("id", "Int64"), Column("v", KINDS.get(setting, "UInt8")))
    there = replace(table(engine, *key), columns=columns)
    if key:  # stored rows are found by their keys, which are never clamped
        there = replace(there, sorting_key=("id", "v"), place_columns=frozenset({"id", "v"}))
    usual, other = Policy(), policy_of(**{setting: value})
    for was, now in ((usual, other), (other, usual)):
        ledger = before(key)
        ledger.claim("second", Terms(readings=was.readings()))
        ledger.release()
        expect_same_terms("s", ledger, there, was)
        elsewhere = replace(there, sorting_key=("id",), place_columns=frozenset({"id"}))
        if key and setting == "out_of_range":
            expect_same_terms("s", ledger, elsewhere, now)
            expect_same_terms("s", ledger, there, now)
            continue
        if key == ("id",):
            # The events, or what was noted of them, say how the column is read.
            noted = tuple(replace(c, comment="debezium: int64 io.debezium.time.Timestamp") for c in elsewhere.columns)
            expect_same_terms("s", ledger, replace(elsewhere, columns=noted), now)
            with pytest.raises(StreamFailed, match="'v' may be read as another value, and these rows would stay"):
                expect_same_terms("s", ledger, elsewhere, now)
        with pytest.raises(StreamFailed, match=rf"under {setting}: .*'(id|v)' may be read as another value") as refused:
            expect_same_terms("s", ledger, there, now)
        assert "resync" in (refused.value.hint or "")


def test_a_stream_that_knows_no_key_yet_may_clamp_values_outside_it() -> None:
    """Where it begins is recorded before anything is read."""
    there, clamps = table(REPLACING, "id"), policy_of(out_of_range="clamp")
    expect_same_terms("s", before(key=()), there, clamps)
    with pytest.raises(StreamFailed, match="under out_of_range"):
        expect_same_terms("s", before(key=()), table(APPEND), clamps)


def test_a_history_finds_rows_by_its_key_whatever_it_is_sorted_by() -> None:
    there = replace(table(APPEND, "v", "id"), columns=(Column("id", "Int64"), Column("v", "UInt8")))
    expect_same_terms("s", before(), there, policy_of(out_of_range="clamp"))
    renamed = replace(there, columns=(Column("nr", "DateTime64(3)"),))
    chosen = ColumnPolicy(rename=(("id", "nr"),))
    with pytest.raises(StreamFailed, match="'nr' may be read as another value"):
        expect_same_terms(
            "s", before(rename=chosen.rename), renamed, replace(policy_of(time_precision="connect"), columns=chosen)
        )


def altered(engine: Engine, was: str, now: str, key: tuple[str, ...], *, rows: int = 5, **policy: Any) -> None:
    """A stream opens that has stored rows before the type of column v was altered."""
    chosen = policy_of(**policy)
    there, place = table(engine, *key), Column("v", was)
    there = replace(there, columns=(Column("id", "Int64"), place))
    ledger = MemoryLedger("s")
    ledger.claim("first", StreamSettings("s", "t", chosen).terms("", types_of(there, chosen)))
    state = State(profile=TopicProfile(key_columns=key)).to_json()
    ledger.results([FinishedRange("t", "T", 0, 0, 5, Counts(rows=rows), state)])
    ledger.release()
    expect_same_terms("s", ledger, replace(there, columns=(Column("id", "Int64"), Column("v", now))), chosen)


OTHERS = [
    ("Nullable(Float32)", "Nullable(Float64)"),
    ("DateTime64(3)", "DateTime64(6)"),
    ("DateTime64(6)", "DateTime64(3)"),
    ("String", "Nullable(String)"),
    ("Nullable(Int64)", "Int64"),
    ("Int64", "Int32"),
    ("DateTime64(6, 'UTC')", "String"),
    ("Date32", "Nullable(String)"),
]


@pytest.mark.parametrize(("was", "now"), OTHERS)
@pytest.mark.parametrize(("engine", "key"), [(APPEND, ()), (APPEND, ("v",)), (REPLACING, ("id", "v"))])
def test_a_column_that_places_rows_has_the_type_that_it_had(
    engine: Engine, key: tuple[str, ...], was: str, now: str
) -> None:
    """An ALTER converts what is stored, and what comes then is another value."""
    with pytest.raises(
        StreamFailed, match=r"with 'v' as .*, and the column is .* now: .* not find these rows"
    ) as error:
        altered(engine, was, now, key)
    assert (was in str(error.value), now in str(error.value)) == (True, True)
    against = " --against topic" if engine is APPEND else ""
    assert error.value.hint == f"Fill the table again with `ch_sink resync CONFIG{against} --apply`."
    altered(engine, was, now, key, rows=0)
    altered(engine, was, now, ("id",))


def test_a_column_may_be_altered_to_a_type_of_the_same_values() -> None:
    for was, now in (("LowCardinality(String)", "String"), ("Int32", "Int64"), ("Date", "Date32")):
        altered(APPEND, was, now, ())
    # What was out of range was not refused.
    with pytest.raises(StreamFailed, match="'v' as Int32"):
        altered(APPEND, "Int32", "Int64", (), out_of_range="clamp")
    altered(APPEND, "Int32", "Int64", ("v",), out_of_range="clamp")


@pytest.mark.parametrize("places", [{"partition_key": "toDate(ts)"}, {"sorting_key": ("toDate(ts)", "id")}])
def test_a_column_that_places_rows_by_an_expression_keeps_its_zone(places: dict[str, Any]) -> None:
    def there(zone: str, **more: Any) -> TargetTable:
        columns = (Column("id", "Int64"), Column("ts", f"DateTime64(3, '{zone}')"))
        return TargetTable("d", "t", REPLACING, columns, **{"sorting_key": ("ts", "id"), **more})

    def opened(**more: Any) -> None:
        was, now = there("UTC", **more), there("Asia/Tokyo", **more)
        was, now = (replace(t, place_columns=frozenset(("id", "ts"))) for t in (was, now))
        ledger = before(key=("id", "ts"))
        ledger.claim("second", Terms(types=types_of(was, Policy())))
        expect_same_terms("s", ledger, now, Policy())

    opened()
    with pytest.raises(StreamFailed, match=r"'ts' as DateTime64\(3, 'UTC'\), and the column is .*Tokyo"):
        opened(**places)


def test_a_filled_table_and_a_new_column_have_no_earlier_type() -> None:
    ledger = before(key=())
    there = table(APPEND)
    expect_same_terms("s", ledger, there, Policy())
    ledger.claim("second", Terms(types=(("id", "String"),)))
    expect_same_terms("s", ledger, there, Policy())
    wide = replace(there, columns=(Column("id", "Nullable(String)"), *there.columns[1:]))
    with pytest.raises(StreamFailed, match="'id' as String"):
        expect_same_terms("s", ledger, wide, Policy())
    ledger.claim("second", Terms())  # a fill
    expect_same_terms("s", ledger, wide, Policy())


@pytest.mark.parametrize("engine", [REPLACING, APPEND])
def test_fields_of_the_key_are_left_out_as_before(engine: Engine) -> None:
    ledger = before()
    ledger.claim("second", Terms(readings=policy_of(ignored_key_fields=("x",)).readings()))
    ledger.release()
    with pytest.raises(StreamFailed, match="under ignored_key_fields: x, and it is its default now"):
        expect_same_terms("s", ledger, table(engine, "id"), Policy())


def test_the_constant_that_tells_topics_apart_stays() -> None:
    def of(value: str) -> dict[str, Any]:
        return {"add": (("tenant", value),), "source": ("tenant",)}

    with pytest.raises(StreamFailed, match="in the column 'tenant'") as error:
        opens(before(**of("'eu'")), table(REPLACING, "tenant", "id"), **of("'us'"))
    assert "use another table" in (error.value.hint or "")


def test_a_stream_that_has_stored_nothing_may_be_changed() -> None:
    ledger = MemoryLedger("s")
    ledger.claim("first", Terms(ColumnPolicy(mask=(("v", "sha256"),)).origins()))
    ledger.release()
    opens(ledger, table(REPLACING, "v", "id"))


def test_a_command_keeps_what_the_last_job_filled_the_columns_with() -> None:
    ledger = before(mask=(("v", "sha256"),))
    ledger.claim("rewind-1")
    ledger.release()
    with pytest.raises(StreamFailed):
        opens(ledger, table(REPLACING, "v", "id"))
    ledger.claim("resync-1", Terms())
    ledger.release()
    opens(ledger, table(REPLACING, "v", "id"))


@pytest.mark.parametrize(("was", "now"), [("public.o", "public.p"), ("public.o", ""), ("", "public.o")])
def test_another_source_table_of_the_topic_stops_the_stream(was: str, now: str) -> None:
    ledger = before()
    ledger.claim("second", Terms(source_table=was))
    ledger.release()
    there, policy = table(REPLACING, "id"), Policy()
    with pytest.raises(StreamFailed, match="source_table is") as error:
        expect_same_terms("s", ledger, there, policy, now)
    assert "another `stream`" in (error.value.hint or "")
    expect_same_terms("s", ledger, there, policy, was)


@pytest.mark.parametrize(("was", "now"), [("o", "shop.public.o"), ("shop.public.o", "public.o")])
def test_a_stream_goes_on_under_more_or_less_of_its_source_table_s_name(was: str, now: str) -> None:
    """Events that state another part of the name than the stream's have stopped it, so it has left none out."""
    ledger = before()
    ledger.claim("second", Terms(source_table=was))
    ledger.release()
    expect_same_terms("s", ledger, table(REPLACING, "id"), Policy(), now)
