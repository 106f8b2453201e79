"""Drawn histories of a MongoDB collection: whatever form its updates are told in, the table equals the collection."""

import json
import random
from typing import Any

import pytest

from ch_sink.model.policy import policy_of
from ch_sink.types.column import Column
from tests.support.choose import some
from tests.support.document_run import DocumentRun, document_table
from tests.support.hand import Event
from tests.support.mongodb import Collection, Description, Dialect, draw_collection, event, plain, update_event

SEEDS = range(5)
DOCUMENT = (Column("_id", "String"), Column("document", "String"))


def truth(collection: Collection) -> list[str]:
    return sorted(json.dumps(plain(d), sort_keys=True) for d in collection.documents.values())


def documents(run: DocumentRun) -> list[str]:
    return sorted(json.dumps(json.loads(row["document"]), sort_keys=True) for row in run.rows())


def delivered(events: list[Event], rng: random.Random, repeats: int) -> list[Event]:
    """The events as a connector that dies sends them: stretches come twice."""
    out = list(events)
    for _ in range(repeats):
        end = rng.randrange(1, len(out) + 1)
        start = rng.randrange(max(0, end - 15), end)
        out[end:end] = out[start:end]
    return out


@pytest.mark.sampled(2)
@pytest.mark.parametrize("engine", ["replacing", "sign", "collapsing", "versioned", "append"])
@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.long) for first in (5, 10, 15))])
def test_the_table_equals_the_collection(engine: str, first: int) -> None:
    for seed in range(first, first + 3):
        keys = ("plain", "typed")[seed % 2]
        collection, dialect = draw_collection(seed, typed=keys == "typed")
        rng = random.Random(seed)
        policy = policy_of(on_bad_record="fail", document_keys=keys)
        run = DocumentRun(document_table(DOCUMENT, engine), policy, collection.events(dialect))
        run.run(rng, longest=rng.choice((1, 3, 12, 100)))
        assert documents(run) == truth(collection), f"seed {seed}"


@pytest.mark.long
@pytest.mark.parametrize(
    "engine", some([("replacing",), ("sign",), ("collapsing",), ("versioned",)], [("sign",), ("collapsing",)])
)
def test_after_kills_and_second_attempts(engine: str) -> None:
    for seed in SEEDS:
        collection, dialect = draw_collection(seed + 1000)
        rng = random.Random(seed)
        run = DocumentRun(document_table(DOCUMENT, engine), policy_of(on_bad_record="fail"), collection.events(dialect))
        run.run(rng, longest=rng.choice((1, 3, 12)), kills=0.3)
        assert documents(run) == truth(collection), f"seed {seed}"


@pytest.mark.long
@pytest.mark.parametrize("engine", ["replacing", "collapsing", "append"])
def test_after_stretches_that_the_connector_sends_twice(engine: str) -> None:
    for seed in SEEDS:
        collection, dialect = draw_collection(seed + 2000)
        rng = random.Random(seed)
        events = delivered(collection.events(dialect), rng, 3)
        run = DocumentRun(document_table(DOCUMENT, engine), policy_of(), events)
        run.run(rng, longest=rng.choice((1, 3, 12)))
        assert documents(run) == truth(collection), f"seed {seed}"
        # A repeated update of a document that was deleted since is the one thing that nobody can apply.
        assert {letter.kind for letter in run.letters} <= {"unresolved"}
        assert engine != "replacing" or not run.letters


@pytest.mark.long
def test_columns_equal_the_fields_of_the_documents() -> None:
    """With the document: columns by name and by path, also where an update changes a part of their value."""
    columns = (*DOCUMENT, Column("a", "String"), Column("b0", "String"), Column("deep", "String"))
    policy = policy_of(on_bad_record="fail", document_columns=(("b0", "b.0"), ("deep", "address.name")))
    for seed in SEEDS:
        collection, dialect = draw_collection(seed + 3000)
        rng = random.Random(seed)
        run = DocumentRun(document_table(columns, "replacing"), policy, collection.events(dialect))
        run.run(rng, longest=rng.choice((1, 3, 12)))
        assert documents(run) == truth(collection)
        whole = DocumentRun(document_table(columns, "replacing"), policy, _snapshot(collection, dialect)).run()
        assert sorted(run.rows(), key=repr) == sorted(
            (dict(row, document=_same(row, run)) for row in whole.rows()), key=repr
        )


@pytest.mark.parametrize("engine", ["replacing", "sign"])
@pytest.mark.parametrize("longest", [1, 100])
def test_a_document_that_nobody_knows_stays_unknown_until_a_whole_one_comes(engine: str, longest: int) -> None:
    columns = (*DOCUMENT, Column("n", "Nullable(Int32)"), Column("tags", "Array(String)"))
    updates = [Description({"n": 5}), Description({"tags.0": "x"}), Description({"n": 6})]
    events = [update_event("a", update) for update in updates]
    policy = policy_of(on_bad_record="fail", on_unresolved="null")
    run = DocumentRun(document_table(columns, engine), policy, events).run(longest=longest)
    assert run.rows() == [{"_id": "a", "document": None, "n": 6, "tags": None}]
    whole = [*events, event("r", "a", {"_id": "a", "n": 7, "tags": ["y"]}), update_event("a", updates[1])]
    run = DocumentRun(document_table(columns, engine), policy, whole).run(longest=longest)
    assert [(row["document"], row["tags"]) for row in run.rows()] == [('{"_id":"a","n":7,"tags":["x"]}', [b"x"])]


def _snapshot(collection: Collection, dialect: Dialect) -> list[Event]:
    """The collection's documents as they are at the end, each with one whole event."""
    last = Collection(random.Random(0))
    for name in collection.documents:
        last.documents = collection.documents
        last.read(name)
    return last.events(dialect)


def _same(row: dict[str, Any], run: DocumentRun) -> str:
    """The document's text in the other run: the order of its fields may be another one."""
    found = next(r["document"] for r in run.rows() if r["_id"] == row["_id"])
    assert json.loads(found) == json.loads(row["document"])
    return str(found)


@pytest.mark.long
def test_text_columns_alone_follow_updates_of_their_parts() -> None:
    """Without a column for the document, a text column that holds a part of it is enough for changes in that part."""
    columns = tuple(Column(n, "String") for n in ("_id", "a", "b", "c", "name", "tags", "address", "0", "1"))
    for seed in SEEDS:
        collection, dialect = draw_collection(seed + 4000)
        rng = random.Random(seed)
        policy = policy_of(on_bad_record="fail")
        run = DocumentRun(document_table(columns, "collapsing"), policy, collection.events(dialect))
        run.run(rng, longest=rng.choice((1, 3, 12)))
        whole = DocumentRun(document_table(columns, "collapsing"), policy, _snapshot(collection, dialect)).run()
        assert _by_value(run) == _by_value(whole)


def _by_value(run: DocumentRun) -> list[str]:
    return sorted(
        json.dumps({n: _parsed(v) if n != "_id" else v for n, v in row.items()}, sort_keys=True) for row in run.rows()
    )


def _parsed(text: str | None) -> Any:
    try:
        return text if text is None else ["json", json.loads(text)]
    except ValueError:
        return text


@pytest.mark.parametrize("longest", [1, 2, 100])
def test_an_update_that_cannot_be_applied_changes_nothing_behind_it(longest: int) -> None:
    """Also not inside a chunk: what comes behind starts from the row before it, and its document leaves it out."""
    columns = (*DOCUMENT, Column("m", "Map(String, Int64)"), Column("t", "String"), Column("n", "Nullable(Int64)"))
    policy = policy_of(document_columns=(("m", "a"), ("t", "b"), ("n", "c")))
    events = [
        event("c", "k", {"_id": "k", "a": {"x": 5}, "b": "one", "c": 1}),
        update_event("k", Description({"a.x": "no number", "b": "wrong", "c": 2})),
        update_event("k", Description({"a.x": "no number either", "b": "wrong, too"})),
        update_event("k", Description({"b": "two"})),
        update_event("k", Description({"a.y": 6})),
        update_event("k", Description({"a.y": "again"})),
        update_event("other", Description({"b": "of a document that nobody knows"})),
    ]
    run = DocumentRun(document_table(columns), policy, events).run(longest=longest)
    assert [(letter.offset, letter.kind, letter.column) for letter in run.letters] == [
        (1, "unresolved", "m"),
        (2, "unresolved", "m"),
        (5, "unresolved", "m"),
        (6, "unresolved", "document"),
    ]
    document = '{"_id":"k","a":{"x":5,"y":6},"b":"two","c":1}'
    assert run.rows() == [{"_id": "k", "document": document, "m": [(b"x", 5), (b"y", 6)], "t": "two", "n": 1}]
    gone = DocumentRun(document_table(columns), policy, [*events, event("d", "k")]).run(longest=longest)
    assert gone.rows() == []


@pytest.mark.parametrize("longest", [1, 100])
def test_rows_from_before_the_documents_column_keep_what_they_have(longest: int) -> None:
    """A column for the document that is added later is empty in the rows that are there."""
    columns = (*DOCUMENT, Column("a", "String"), Column("n", "Nullable(Int32)"), Column("m", "Map(String, Int64)"))
    events = [
        event("c", "k", {"_id": "k", "a": {"x": 1}, "n": 1, "m": {"x": 1}}),
        update_event("k", Description({"a.x": 2, "n": 2})),
        update_event("k", Description({"m.x": 2})),
        update_event("k", Description({"a.y": 3})),
    ]
    run = DocumentRun(document_table(columns), policy_of(), events)
    run.apply(0, 1)
    run.table.rows[0]["document"] = b""
    for start in range(1, len(events), longest):
        run.apply(start, min(len(events), start + longest))
    [row] = run.rows()
    assert (row["a"], row["n"], row["m"], row["document"] or "") == ('{"x":2,"y":3}', 2, [(b"x", 1)], "")
    [letter] = run.letters
    assert (letter.offset, letter.kind, letter.column) == (2, "unresolved", "m")
    assert "does not hold this document yet" in letter.reason


@pytest.mark.parametrize("longest", [1, 100])
def test_a_document_that_a_json_column_would_refuse_is_a_dead_letter(longest: int) -> None:
    """The server refuses the whole insert for one path that is there twice."""
    columns = (Column("_id", "String"), Column("document", "JSON"))
    events = [
        event("c", "k", {"_id": "k", "a": {"b": 1}}),
        event("c", "twice", {"_id": "twice", "a": {"b": 1}, "a.b": 2}),
        update_event("k", Description({"c": {"d": {"e": 1}, "d.e": 2}})),
        update_event("k", Description({"f": 1})),
    ]
    run = DocumentRun(document_table(columns), policy_of(), events).run(longest=longest)
    assert [json.loads(row["document"]) for row in run.rows()] == [{"_id": "k", "a": {"b": 1}, "f": 1}]
    assert [letter.offset for letter in run.letters] == [1, 2]
    assert all("twice" in letter.reason for letter in run.letters)
