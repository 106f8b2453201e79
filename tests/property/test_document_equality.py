"""Whatever a group of document events is, its batch is the same with and without the compiled scanner."""

import ctypes
import json
import random
from typing import Any

import pytest

from benchmarks.micro import chunk
from benchmarks.suite.workloads import WORKLOADS
from ch_sink.decode import Decoder
from ch_sink.decode.json import scanned
from ch_sink.decode.mongodb import columns, events
from ch_sink.model.change import Records
from ch_sink.model.policy import policy_of
from ch_sink.types.column import Column
from tests.support.decoding import replacing
from tests.support.document_fuzz import documents, texts_apart
from tests.support.mongodb import key_of, sample
from tests.support.scan_fuzz import Group, differences, records_of, shown, with_scanner

WHOLE = [Column("_id", "String"), Column("document", "Nullable(String)")]


def test_texts_are_written_as_python_writes_them(library: ctypes.CDLL) -> None:
    count = 0
    for seed in range(100):
        wrong, some = texts_apart(seed, library)
        assert not wrong, seed
        count += some
    assert count > 100 * 200 * 0.4  # and most are


@pytest.mark.long
def test_a_few_groups_mean_the_same(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    read = [0, 0]
    whole = scanned.Programs.read

    def counted(self: scanned.Programs, *given: Any) -> Any:
        made = whole(self, *given)
        read[made is not None] += 1
        return made

    monkeypatch.setattr(scanned.Programs, "read", counted)
    for seed in range(25):
        assert not differences(documents(seed), library), seed
    assert min(read) > 5  # both what the scanner takes and what it leaves


def test_a_path_that_is_there_twice_is_refused_for_a_json_column_alone(library: ctypes.CDLL) -> None:
    texts = ['{"_id":1,"a":{"b":%d}}', '{"_id":1,"a":{"b":%d},"a.b":2}', '{"_id":1,"a":[{"b":{"c":%d},"b.c":2}]}']
    source = {"connector": "mongodb", "name": "s", "ts_ms": 1}
    values = [{"after": texts[i % 5 % 3] % i, "source": source, "op": "c"} for i in range(100)]
    keys = [json.dumps(key_of(i), separators=(",", ":")).encode() for i in range(100)]
    records = records_of(list(keys), [json.dumps(value, separators=(",", ":")).encode() for value in values])
    for table, bad in (("a column for the document", 0), ("a JSON column", 60)):
        policy = policy_of(document_keys="typed")
        given = Group(replacing(tuple(TABLES[table]), ("_id",)), policy, False, [records])
        assert not differences(given, library)
        assert len(Decoder(given.table, given.policy).decode(records).bad) == bad


ODD = (
    '{"_id":0,"a":{"$oid" "$date":5}}',
    '{"_id":0,"a":{"$date" "$numberLong" "$numberInt":"7"}}',
    r'{"_id":0,"a":{"\u0024oid":"5d505646cf6d4fe581014ab2"}}',
    r'{"_id":0,"a":{"\u0024oid":"5d505646cf6d4fe581014ab2"},"price":"5$"}',
    r'{"_id":0,"n":{"\u0024numberLong":"5"}}',
    r'{"_id":0,"n":{"\u0024numberLong":{"x":1}},"price":"5$"}',
    '{"_id":0,"n":{"$numberInt":5.9}}',
    '{"_id":0,"n":{"$numberLong":true}}',
    '{"_id":0,"n":{"$numberLong":"1_0"}}',
    '{"_id":0,"n":{"$numberInt":"4000000000"}}',
    '{"_id":0,"d":{"$date":{"$numberLong":"5","x":1}}}',
)


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("columns", [WHOLE, [*WHOLE, Column("n", "Nullable(Int64)"), Column("a", "Nullable(String)")]])
def test_an_odd_text_means_the_same_among_usual_ones(library: ctypes.CDLL, odd: str, columns: list[Column]) -> None:
    source = {"connector": "mongodb", "name": "s", "ts_ms": 1}
    usual = '{"_id":%d,"a":{"$oid":"5d505646cf6d4fe581014ab2"},"n":{"$numberLong":"7"}}'
    texts = [odd if i == 40 else usual % i for i in range(80)]
    values = [json.dumps({"after": t, "source": source, "op": "c"}, separators=(",", ":")).encode() for t in texts]
    keys: list[bytes | None] = [b'{"id":"%d"}' % i for i in range(80)]
    policy = policy_of(document_keys="typed")
    given = Group(replacing(tuple(columns), ("_id",)), policy, False, [records_of(keys, list(values))])
    assert not differences(given, library)


@pytest.mark.parametrize("odd", ['{"$oid" "$numberLong":"7"}', r'{"\u0024oid":"5d505646cf6d4fe581014ab2"}'])
def test_an_odd_key_means_the_same_among_usual_ones(library: ctypes.CDLL, odd: str) -> None:
    source = {"connector": "mongodb", "name": "s", "ts_ms": 1}
    values = [json.dumps({"after": json.dumps({"_id": i}), "source": source, "op": "c"}).encode() for i in range(80)]
    keys = [json.dumps({"id": odd if i == 40 else str(i)}, separators=(",", ":")).encode() for i in range(80)]
    policy = policy_of(document_keys="typed")
    given = Group(replacing(tuple(WHOLE), ("_id",)), policy, False, [records_of(list(keys), list(values))])
    assert not differences(given, library)


@pytest.mark.long
def test_thousands_of_groups_mean_the_same(library: ctypes.CDLL) -> None:
    first = random.randrange(1 << 40)
    print(f"seeds from {first} on")  # noqa: T201
    for seed in range(first, first + 4000):
        wrong, _ = texts_apart(seed, library)
        assert not wrong, seed
        assert not differences(documents(seed), library), seed


def _samples() -> Records:
    """The document's own events, some hundred times."""
    [create] = [v for v in sample("create") if "after" in v.get("payload", {})]
    [update] = [v for v in sample("update") if "after" in v.get("payload", {})]
    [delete] = [v for v in sample("delete") if v.get("payload", {}).get("op") == "d"]
    payloads = [create["payload"], update["payload"], delete["payload"]]
    keys: list[bytes | None] = []
    out: list[bytes | None] = []
    for payload in payloads:
        for i in range(100):
            keys.append(json.dumps(key_of(1000 + i), separators=(",", ":")).encode())
            out.append(json.dumps(payload, separators=(",", ":")).encode())
    return records_of(keys, out)


def _typical() -> Records:
    """Documents of all usual types as the connector writes them, some with their before image."""
    keys: list[bytes | None] = []
    out: list[bytes | None] = []
    for i in range(200):
        oid = f'{{"$oid": "{i:024x}"}}'
        text = f"""{{"_id": {oid},"created": {{"$date": {1_700_000_000_000 + i}}},"n": {{"$numberLong": "{i}"}},
"price": {{"$numberDecimal": "{i}.50"}},"score": 0.{i}5,"name": "Größe {i}","note": "\\"{i}\\"",
"tags": ["a","b"],"none": null,"address": {{"city": "Oslo","zip": {i},"at": [10.5,60]}},
"uuid": {{"$binary": "ABEiM0RVZneImaq7zN3u/w==","$type": "04"}},
"data": {{"$binary": "AP8=","$type": "00"}}}}"""
        text = text.replace("\n", "")
        source = {"connector": "mongodb", "name": "s", "ts_ms": 1, "snapshot": "false", "db": "d", "ord": i}
        event = {"before": text if i % 3 else None, "after": text, "source": source, "op": "u" if i % 2 else "c"}
        keys.append(json.dumps({"id": oid}, separators=(",", ":")).encode())
        out.append(json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode())
    return records_of(keys, out)


TABLES = {
    "a column for the document": WHOLE,
    "a JSON column": [WHOLE[0], Column("document", "JSON")],
    "text columns beside it": [*WHOLE, Column("name", "Nullable(String)"), Column("created", "Nullable(String)")],
}
GIVEN = {
    "benchmark": lambda: chunk(WORKLOADS["documents"], 300),
    "samples": _samples,
    "typical": _typical,
}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("given", GIVEN)
def test_usual_documents_need_no_python(
    given: str, table: str, library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, (key, *others) = GIVEN[given](), TABLES[table]
    key = Column(key.name, "Int64") if given == "samples" else key
    target = replacing((key, *others), ("_id",))
    groups = [records.slice(start, start + 100) for start in range(0, len(records), 100)]
    with with_scanner(None):
        plain = Decoder(target, policy_of(), want_before=True)
        profile = plain.learn(records)
        expected = [shown(plain.decode(group, profile)) for group in groups]

    def parsed(*_: Any, **__: Any) -> Any:
        raise AssertionError("Python parses a document")

    for module in (events, columns):
        monkeypatch.setattr(module, "parse", parsed)
    with with_scanner(library):
        fast = Decoder(target, policy_of(), want_before=True)
        found = [shown(fast.decode(group, profile)) for group in groups]
    assert found == expected
