"""Datums read all at once equal those that fastavro reads one by one, whatever their bytes; so do whole chunks."""

import json
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ch_sink.decode import Decoder
from ch_sink.decode.avro.definition import Unreadable, Want, read, reader
from ch_sink.decode.avro.schema import Node, parse
from ch_sink.decode.avro.vectors import NotText
from ch_sink.discovery.sample import sample_schema
from ch_sink.model.change import Records
from ch_sink.model.policy import policy_of
from tests.support.avro import Topic, peer_read, peer_schema
from tests.support.decoding import outcome, table_of
from tests.support.fixtures import partitions, read_stream, registry, registry_schemas, topics

PRIMITIVES = ("boolean", "int", "long", "float", "double", "bytes", "string")


@st.composite
def schemas(draw: st.DrawFn, depth: int = 2, number: "list[int] | None" = None) -> Any:
    """A type with names of its own."""
    number = [0] if number is None else number
    number[0] += 1
    name = f"N{number[0]}"
    kinds = [*PRIMITIVES, "fixed", "enum"] + (["array", "map", "record", "optional", "union"] if depth else [])
    kind = draw(st.sampled_from(kinds))
    if kind in PRIMITIVES:
        return kind
    if kind == "fixed":
        return {"type": "fixed", "name": name, "size": draw(st.integers(0, 20))}
    if kind == "enum":
        return {"type": "enum", "name": name, "symbols": ["A", "B", "C"]}
    inner = schemas(depth - 1, number)
    if kind == "array":
        return {"type": "array", "items": draw(inner.filter(lambda s: not _empty(s)))}
    if kind == "map":
        return {"type": "map", "values": draw(inner.filter(lambda s: not _empty(s)))}
    if kind == "record":
        fields = [{"name": f"f{i}", "type": draw(inner)} for i in range(draw(st.integers(0, 4)))]
        return {"type": "record", "name": name, "fields": fields}
    if kind == "optional":
        found = draw(inner.filter(lambda s: not isinstance(s, list)))
        return draw(st.sampled_from([["null", found], [found, "null"]]))
    return draw(st.sampled_from([["long"], ["null"]]))  # of several: tests.property.test_avro_unions


def _empty(schema: Any) -> bool:
    """Whether a value has no bytes: Connect writes no arrays or maps of those, and counts of them are not believed."""
    if isinstance(schema, dict) and schema["type"] == "record":
        return all(_empty(f["type"]) for f in schema["fields"])
    return isinstance(schema, dict) and schema["type"] == "fixed" and schema["size"] == 0


def values(schema: Any) -> st.SearchStrategy[Any]:
    if isinstance(schema, list):
        return st.one_of([values(branch) for branch in schema])
    kind = schema if isinstance(schema, str) else schema["type"]
    if kind == "record":
        return st.fixed_dictionaries({f["name"]: values(f["type"]) for f in schema["fields"]})
    if kind == "array":
        return st.lists(values(schema["items"]), max_size=4)
    if kind == "map":
        return st.dictionaries(st.text(max_size=4), values(schema["values"]), max_size=3)
    longs = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-70, 70)
    return {
        "null": st.none(),
        "boolean": st.booleans(),
        "int": st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(-70, 70),
        "long": longs,
        "float": st.floats(width=32),
        "double": st.floats(),
        "bytes": st.binary(max_size=40),
        "string": st.text(max_size=40),
        "fixed": st.binary(min_size=schema["size"], max_size=schema["size"]) if kind == "fixed" else st.none(),
        "enum": st.sampled_from("ABC"),
    }[kind]


@st.composite
def mutated(draw: st.DrawFn, datum: bytes) -> bytes:
    """The datum with some bytes flipped, cut off or put in."""
    how = draw(st.sampled_from(["cut", "flip", "insert", "append"]))
    place = draw(st.integers(0, max(len(datum) - 1, 0)))
    if how == "cut":
        return datum[:place]
    if how == "append":
        return datum + draw(st.binary(min_size=1, max_size=3))
    new = draw(st.binary(min_size=1, max_size=2))
    return datum[:place] + new + datum[place + (len(new) if how == "flip" else 0) :]


def agrees_with_the_peer(text: str, datums: list[bytes]) -> None:
    node, peer = parse(text), peer_schema(text)
    whole, bad, odd = _read(node, datums)
    _, over, _ = _read(node, datums, want={})
    assert over == bad
    for i, datum in enumerate(datums):
        try:
            wanted, canonical = peer_read(peer, datum)
        except Exception:  # noqa: BLE001 (fastavro raises many kinds)
            wanted, canonical = None, False
        single, single_bad, single_odd = _read(node, [datum])
        assert bool(single_bad) == (i in bad)
        if canonical:
            assert not single_bad
            assert not single_odd
            assert repr(single) == repr([wanted])
            assert repr(reader(node)(datum, 0)) == repr((wanted, len(datum)))
            if whole is not None:
                assert repr(whole[i]) == repr(wanted)
        elif not single_bad and not single_odd:
            # Bytes that nobody writes so (an integer in more bytes than it needs): both ways read the same.
            assert repr(reader(node)(datum, 0)) == repr((single and single[0], len(datum)))
    assert not bad or whole is None
    assert not odd or whole is None


def _read(node: Node, datums: list[bytes], want: Want | None = None) -> tuple[list[Any] | None, list[int], list[int]]:
    """The values, the places of what does not follow the schema, and those of texts that are not UTF-8."""
    try:
        return read(node, datums, want=want).tolist(), [], []
    except Unreadable as error:
        return None, error.places, []
    except NotText as error:
        return None, [], error.places


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_any_schema_and_any_bytes_are_read_as_fastavro_reads_them(data: st.DataObject) -> None:
    schema = data.draw(schemas(3))
    topic = Topic()
    datums = [topic.write(schema, data.draw(values(schema)))[5:] for _ in range(data.draw(st.integers(1, 6)))]
    for i in range(len(datums)):
        if data.draw(st.integers(0, 2)) == 0:
            datums[i] = data.draw(mutated(datums[i]))
    agrees_with_the_peer(json.dumps(schema), datums)


RECORDED = {
    (db, schema_id): [
        v[5:]
        for r in read_stream(f"{db}-avro")
        for v in (r.key, r.value)
        if v and int.from_bytes(v[1:5], "big") == schema_id
    ]
    for db in ("mariadb", "postgres")
    for schema_id in registry_schemas(db)
}


def test_every_recorded_datum_is_read_as_fastavro_reads_it() -> None:
    for (db, schema_id), datums in RECORDED.items():
        if datums:
            agrees_with_the_peer(registry_schemas(db)[schema_id]["schema"], datums)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(sorted(k for k, v in RECORDED.items() if v)), st.data())
def test_recorded_datums_with_changed_bytes_are_read_as_fastavro_reads_them(
    which: tuple[str, int], data: st.DataObject
) -> None:
    datums = list(RECORDED[which][:6])
    for i in range(len(datums)):
        if data.draw(st.booleans()):
            datums[i] = data.draw(mutated(datums[i]))
    agrees_with_the_peer(registry_schemas(which[0])[which[1]]["schema"], datums)


CHUNKS = [
    (f"{db}-avro", records)
    for db in ("mariadb", "postgres")
    for topic in topics(f"{db}-avro")
    if topic.endswith((".all_types", ".kc", ".toast_t", ".ac", ".special"))
    for records in partitions(f"{db}-avro", topic).values()
    if len(records) > 1
]


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(range(len(CHUNKS))), st.data())
def test_a_chunk_equals_each_of_its_records_alone(which: int, data: st.DataObject) -> None:
    stream, records = CHUNKS[which]
    held = registry(stream)
    schema = sample_schema([r for s, r in CHUNKS if s == stream and r.topic == records.topic], registry=held)
    assert schema is not None
    table = table_of(schema)
    values_ = list(records.values)
    for i, value in enumerate(values_):
        if value and data.draw(st.integers(0, 3)) == 0:
            keep = data.draw(st.sampled_from([0, 1, 5]))  # of the framing
            values_[i] = value[:keep] + data.draw(mutated(value[keep:]))
    changed = Records(
        records.topic, records.partition, records.offsets, records.timestamps, records.keys, values_, records.headers
    )

    def decoder() -> Decoder:
        return Decoder(table, policy_of(), want_before=True, registry=held)

    profile = decoder().learn(next(r for s, r in CHUNKS if s == stream and r.topic == records.topic))
    whole = decoder().decode(changed, profile)
    events, bad = outcome(whole)
    single = decoder()
    skipped = 0
    for i in range(len(changed)):
        alone = single.decode(changed.slice(i, i + 1), profile)
        own, own_bad = outcome(alone)
        offset = int(changed.offsets[i])
        assert own.get(offset) == events.get(offset)
        assert own_bad.get(0) == bad.get(i)
        skipped += alone.skipped_counts.total()
    assert whole.skipped_counts.total() == skipped
    assert len(events) + len(bad) + skipped == len(changed)
    assert np.all(np.diff(whole.offset) > 0)
