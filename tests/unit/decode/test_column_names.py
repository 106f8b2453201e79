"""Column names with quotes, backslashes and control characters: in every format, as columns and as keys."""

import json
from random import Random
from typing import Any

import numpy as np
import pytest

from ch_sink.decode import Decoder
from ch_sink.decode.framing import _surely
from ch_sink.decode.native import library as native
from ch_sink.decode.native.library import Joined, joined
from ch_sink.discovery.sample import sample_schema
from ch_sink.model.change import ChangeBatch, Records
from ch_sink.model.policy import policy_of
from ch_sink.types.column import Column
from tests.support.avro import Topic, envelope
from tests.support.avro import event as avro_event
from tests.support.avro import records as avro_records
from tests.support.decoding import listed, replacing
from tests.support.event import NO_ROWS, SIGNAL, SOURCE, event, records

NAMES = ('say "x"', "a\\b", "line\nbreak", "\x01", "\x1f", '"', "\\", "\\n", "\x7f", "ü`'", "a.b", "$c", "")
UNUSUAL = NAMES[:8]


def _struct(fields: dict[str, str], field: str | None = None) -> dict[str, Any]:
    out: dict[str, Any] = {
        "type": "struct",
        "optional": True,
        "fields": [{"field": name, "type": kind, "optional": True} for name, kind in fields.items()],
    }
    return out if field is None else {**out, "field": field}


def _with_schema(schema: Any, payload: Any) -> bytes:
    return json.dumps({"schema": schema, "payload": payload}, separators=(",", ":")).encode()


def _table(name: str) -> Any:
    return replacing((Column(name, "Int64"), Column(f"{name}v", "Nullable(String)"), Column("w", "String")), (name,))


def _image(name: str, number: int) -> dict[str, Any]:
    return {name: number, f"{name}v": f'text {number} \\ "', "w": "w"}


def _event(after: Any, before: Any = None) -> dict[str, Any]:
    return {"before": before, "after": after, "source": SOURCE, "op": "c" if after else "d"}


def _assert_rows(batch: ChangeBatch, name: str, count: int = 2) -> None:
    assert not batch.bad
    assert not batch.unknown
    want = [{name: n, f"{name}v": f'text {n} \\ "'.encode(), "w": b"w"} for n in range(count)]
    assert batch.after.to_pylist()[:count] == want
    assert [key[name] for key in listed(batch.key)[:count]] == list(range(count))


@pytest.mark.parametrize("name", NAMES)
def test_plain_json(name: str) -> None:
    events = [_event(_image(name, 0)), _event(_image(name, 1)), _event(None, _image(name, 1))]
    keys = [{name: n} for n in (0, 1, 1)]
    pairs = [(json.dumps(k).encode(), json.dumps(e).encode()) for k, e in zip(keys, events, strict=True)]
    batch = Decoder(_table(name), policy_of(), want_before=True).decode(records(*pairs))
    _assert_rows(batch, name)
    assert listed(batch.before)[2] == {name: 1, f"{name}v": b'text 1 \\ "', "w": b"w"}


@pytest.mark.parametrize("name", NAMES)
def test_json_with_schema(name: str) -> None:
    image = {name: "int64", f"{name}v": "string", "w": "string"}
    schema = {**_struct({}), "fields": [_struct(image, "before"), _struct(image, "after")]}
    pairs = [
        (_with_schema(_struct({name: "int64"}), {name: n}), _with_schema(schema, _event(_image(name, n))))
        for n in range(2)
    ]
    _assert_rows(Decoder(_table(name), policy_of()).decode(records(*pairs)), name)


@pytest.mark.parametrize("with_schema", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_flattened_rows(name: str, with_schema: bool) -> None:
    rows = [{**_image(name, n), "__deleted": "false", f"__source_{name}": 7} for n in range(2)]
    schema = _struct(
        {name: "int64", f"{name}v": "string", "w": "string", "__deleted": "string", f"__source_{name}": "int64"}
    )
    texts = [_with_schema(schema, row) if with_schema else json.dumps(row).encode() for row in rows]
    keys = [json.dumps({name: n}).encode() for n in range(2)]
    found = records(*zip(keys, texts, strict=True))
    _assert_rows(Decoder(_table(name), policy_of()).decode(found), name)


@pytest.mark.parametrize("name", UNUSUAL)
def test_avro_with_adjusted_names(name: str) -> None:
    """``field.name.adjustment.mode=avro_unicode``, the only one that keeps such names apart."""
    codes = "".join(f"_u{ord(c):04x}" if not c.isalnum() else c for c in name)
    fields = [
        {"name": codes, "type": "long"},
        {"name": f"{codes}v", "type": ["null", "string"]},
        {"name": "w", "type": "string"},
    ]
    topic = Topic()
    key = {"type": "record", "name": "Key", "fields": fields[:1]}
    pairs = [
        (
            topic.write(key, {codes: n}),
            topic.write(envelope(fields), avro_event("c", {codes: n, f"{codes}v": f'text {n} \\ "', "w": "w"}, None)),
        )
        for n in range(2)
    ]
    found: Records = avro_records(list(pairs))
    _assert_rows(Decoder(_table(name), policy_of(), registry=topic.registry).decode(found), name)


def test_a_fault_names_the_column_by_its_own_name() -> None:
    name = 'say "x"\n'
    table = replacing((Column("id", "Int64"), Column(name, "Nullable(Int64)")), ("id",))
    batch = Decoder(table, policy_of()).decode(records((1, json.dumps(_event({"id": 1, name: {}})).encode())))
    assert [bad.column for bad in batch.bad] == [name]
    assert repr(name) in batch.bad[0].reason


@pytest.mark.parametrize("name", UNUSUAL)
def test_members_of_a_struct_column(name: str) -> None:
    quoted = name.replace("\\", "\\\\").replace("\n", "\\n")
    table = replacing((Column("id", "Int64"), Column("t", f"Tuple(`{quoted}` Int64, b String)")), ("id",))
    struct = _struct({name: "int64", "b": "string"}, "t")
    image = {**_struct({}, "after"), "fields": [{"field": "id", "type": "int64"}, struct]}
    schema = {**_struct({}), "fields": [image]}
    value = _with_schema(schema, _event({"id": 1, "t": {name: 9, "b": "x"}}))
    batch = Decoder(table, policy_of()).decode(records((1, value)))
    assert not batch.bad
    assert list(batch.after.to_pylist()[0]["t"].values()) == [9, b"x"]


@pytest.fixture(params=[True, False], ids=["compiled", "python"])
def _join(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(native, "joiner", lambda: None)
    elif native.joiner() is None:
        pytest.skip("the library is not compiled")


def drawn(seed: int) -> list[bytes]:
    rnd = Random(seed)
    return [rnd.randbytes(rnd.choice([0, 1, 7, 8, 400, 70_000])) for _ in range(rnd.randint(0, 90))]


@pytest.mark.usefixtures("_join")
@pytest.mark.parametrize("seed", range(20))
def test_texts_are_one_behind_the_other(seed: int) -> None:
    texts = drawn(seed)
    together = joined(texts)
    assert together.data == b"".join(texts)
    assert together.lengths.tolist() == [len(text) for text in texts]
    assert together.ends.tolist() == np.cumsum([len(text) for text in texts]).tolist()
    assert together == texts
    assert joined(together) is together


@pytest.mark.usefixtures("_join")
@pytest.mark.parametrize("wrong", [None, "text", 5])
def test_what_is_no_bytes_object_is_refused(wrong: object) -> None:
    with pytest.raises(TypeError):
        assert Joined([b"a", wrong, b"b"]).data  # type: ignore[list-item]


@pytest.mark.parametrize(
    "head", [b'{"', b'{"s', b'{"p', b'{"x', b"{", b"", b'["a', b'{ "', b'{"a":1}', b'{"schema":1}']
)
@pytest.mark.parametrize("place", [0, 30, 79])
def test_only_values_that_cannot_be_envelopes_are_surely_none(head: bytes, place: int) -> None:
    if native.library() is None:
        pytest.skip("the library is not compiled")
    values = [b'{"id":1}'] * 80
    assert _surely(Joined(values))
    values[place] = head
    assert _surely(Joined(values)) == (len(head) > 2 and head[:2] == b'{"' and head[2:3] not in b"sp")


def text(value: Any) -> bytes:
    return json.dumps(value).encode()


@pytest.mark.parametrize(("key", "other", "_kind"), NO_ROWS)
@pytest.mark.parametrize("value", [event("c", {"a": 1, "v": "x"}), text({"a": 1, "v": "x", "__deleted": "false"})])
@pytest.mark.parametrize("first", [True, False])
def test_columns_and_key_are_those_of_the_rows(key: Any, other: Any, _kind: Any, value: bytes, first: bool) -> None:
    pairs = [(text(key), text(other)), (text({"a": 1}), value), (text({"a": 1}), None)]
    schema = sample_schema(records(*(pairs if first else pairs[::-1])))
    assert schema is not None
    assert [f.name for f in schema.fields] == ["a", "v"]
    assert [f.name for f in schema.key] == ["a"]


def test_a_tombstone_of_a_signal_does_not_tell_the_key() -> None:
    schema = sample_schema(records((text({"id": "6d"}), None), (text({"a": 1}), event("c", {"a": 1}))))
    assert schema is not None
    assert [f.name for f in schema.key] == ["a"]


def test_the_signal_table_has_a_schema_of_its_own() -> None:
    schema = sample_schema(records((text({"id": "6d"}), event("c", SIGNAL)), (text({"id": "6d"}), None)))
    assert schema is not None
    assert [f.name for f in schema.fields] == ["id", "type", "data"]
    assert [f.name for f in schema.key] == ["id"]
