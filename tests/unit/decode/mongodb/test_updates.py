"""Updates that state only what changed, applied as MongoDB applies them: one line per case."""

import copy
import json
from types import SimpleNamespace
from typing import Any

import pytest

from ch_sink.decode.mongodb.updates import MISSING, Step, Update, at, from_description, from_patch
from ch_sink.errors import DecodeError

DOCUMENT: dict[str, Any] = {
    "_id": 1, "name": "Anne", "address": {"city": "Oslo", "zip": ["0150", "0151"]},
    "tags": ["a", "b", "c"], "lines": [{"n": 1, "sku": "x"}, {"n": 2}], "0": "a field named 0",
    "n": {"0": "in a document"},
}  # fmt: skip


def described(fields: Any = None, removed: Any = None, truncated: Any = None) -> Update:
    return from_description(SimpleNamespace(updatedFields=fields, removedFields=removed, truncatedArrays=truncated))


def cut(field: str, size: int, name: str = "size") -> list[dict[str, Any]]:
    return [{"field": field, name: size}]


DIFF = {
    "d": {"n": False}, "u": {"name": "Bo"}, "i": {"age": 5}, "saddress": {"u": {"city": "Rome"}},
    "stags": {"a": True, "l": 2, "u0": "A"}, "slines": {"a": True, "s1": {"i": {"q": 3}}},
}  # fmt: skip
CASES = {
    "a field": (described('{"name": "Bo"}'), {"name": "Bo"}),
    "a new field": (described('{"age": 5}'), {"age": 5}),
    "a field to null": (described('{"name": null}'), {"name": None}),
    "a nested field": (described('{"address.city": "Rome"}'), {"address": {"city": "Rome", "zip": ["0150", "0151"]}}),
    "a new nested field": (
        described('{"address.land.code": "NO"}'),
        {"address": {**DOCUMENT["address"], "land": {"code": "NO"}}},
    ),
    "an array's element": (described('{"tags.1": "B"}'), {"tags": ["a", "B", "c"]}),
    "one element more": (described('{"tags.3": "d"}'), {"tags": ["a", "b", "c", "d"]}),
    "an element beyond the end": (described('{"tags.5": "f"}'), {"tags": ["a", "b", "c", None, None, "f"]}),
    "a field of an element": (described('{"lines.1.n": 9}'), {"lines": [{"n": 1, "sku": "x"}, {"n": 9}]}),
    "a number that is a field": (described('{"0": "new", "n.0": "new"}'), {"0": "new", "n": {"0": "new"}}),
    "a removed field": (described(None, ["name"]), {"name": MISSING}),
    "a removed nested field": (described(None, ["address.city"]), {"address": {"zip": ["0150", "0151"]}}),
    "a removed element": (described(None, ["tags.0"]), {"tags": [None, "b", "c"]}),
    "a removed field that is not there": (described(None, ["nothing.here", "tags.9"]), {}),
    "a truncated array": (described(None, None, cut("tags", 1)), {"tags": ["a"]}),
    "an array truncated to nothing": (described(None, None, cut("tags", 0)), {"tags": []}),
    "a nested truncated array": (
        described(None, None, cut("address.zip", 1)),
        {"address": {"city": "Oslo", "zip": ["0150"]}},
    ),
    "a truncation as MongoDB names it": (described(None, None, cut("tags", 2, "newSize")), {"tags": ["a", "b"]}),
    "a longer truncation": (described(None, None, cut("tags", 7)), {}),
    "truncated first, then set": (described('{"tags.0": "z"}', None, cut("tags", 1)), {"tags": ["z"]}),
    "all three": (described('{"name": "Bo"}', ["n"], cut("tags", 2)), {"name": "Bo", "n": MISSING, "tags": ["a", "b"]}),
    "lists as their texts": (
        described(None, '["name"]', '[{"field": "tags", "size": 1}]'),
        {"name": MISSING, "tags": ["a"]},
    ),
    "nothing at all": (described(), {}),
    "a field below a text, in a stretch that comes twice": (described('{"name.first": "A"}'), {"name": {"first": "A"}}),
    "an oplog's operators": (
        from_patch('{"$v": 1, "$set": {"name": "Bo", "tags.0": "A"}, "$unset": {"n": true}}', 1),
        {"name": "Bo", "tags": ["A", "b", "c"], "n": MISSING},
    ),
    "an oplog's operators without version": (from_patch('{"$set": {"name": "Bo"}}', 1), {"name": "Bo"}),
    "an oplog's diff": (
        from_patch(json.dumps({"$v": 2, "diff": DIFF}), 1),
        {
            "n": MISSING, "name": "Bo", "age": 5, "address": {"city": "Rome", "zip": ["0150", "0151"]},
            "tags": ["A", "b"], "lines": [{"n": 1, "sku": "x"}, {"n": 2, "q": 3}],
        },
    ),
    "an oplog's diff of a name with a dot": (from_patch('{"$v": 2, "diff": {"i": {"a.b": 1}}}', 1), {"a.b": 1}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_update_of(name: str) -> None:
    update, changes = CASES[name]
    want = {n: v for n, v in {**DOCUMENT, **changes}.items() if v is not MISSING}
    before = copy.deepcopy(DOCUMENT)
    assert update.apply(before) == want
    assert before == DOCUMENT  # what is stored for other events is not changed
    assert update.apply(update.apply(before)) == update.apply(before)


@pytest.mark.parametrize("dotted", ["name", "tags", "tags.0", "address", "address.zip", "lines", ""])
def test_a_part_of_the_document_follows_by_itself(dotted: str) -> None:
    """The steps at and below a path make of that part what the whole update makes of it."""
    for name, (update, _) in CASES.items():
        assert follows(update, dotted), name


def follows(update: Update, dotted: str) -> bool:
    path = tuple(dotted.split(".")) if dotted else ()
    part = update.below(path)
    before = at(DOCUMENT, path)
    after = at(update.apply(DOCUMENT), path)
    got = before if part is None else part.apply(before)
    element = path[-1:] == ("0",)
    return bool(got == after or (element and got is MISSING and after in (None, MISSING)))


def test_a_whole_document_in_the_oplog_gets_its_id_from_the_filter() -> None:
    update = from_patch('{"name": "Bo"}', 7)
    assert update.whole
    assert update.apply(MISSING) == {"_id": 7, "name": "Bo"}
    assert from_patch('{"_id": 8, "name": "Bo"}', 7).apply(MISSING) == {"_id": 8, "name": "Bo"}


def test_what_stays_as_it_is_is_told() -> None:
    update = described('{"name": "Bo", "address.city": "Rome"}')
    assert update.below(("tags",)) is None
    assert update.below(("address", "zip")) is None
    assert update.below(("name",)) == Update((Step("set", (), "Bo"),))
    inside = update.below(("address",))
    assert not inside.whole


@pytest.mark.parametrize(
    ("update", "named"),
    [
        (lambda: described("[1]"), "updatedFields"),
        (lambda: described("{", None), "Extended JSON"),
        (lambda: described(None, [1]), "removedFields"),
        (lambda: described(None, '{"a": 1}'), "removedFields"),
        (lambda: described(None, None, [{"field": "a"}]), "truncatedArrays"),
        (lambda: from_patch('{"$push": {"a": 1}}', 1), r"\$push"),
        (lambda: from_patch('{"$v": 2, "diff": {"x": 1}}', 1), "'x'"),
        (lambda: from_patch("[]", 1), "patch"),
    ],
)
def test_what_is_no_update_is_an_error(update: Any, named: str) -> None:
    with pytest.raises(DecodeError, match=named):
        update()
