"""The tests' own ``ExtractNewRecordState`` makes what Debezium's makes."""

import json
from typing import Any

import pytest

from tests.support.fixtures import FIXTURES, Recorded, parse, read_stream
from tests.support.smt import Flatten

FIELDS = "op,table,lsn,pos,row,file,name,source.ts_ms,source.sequence,transaction.id,ts_ms,total_order,db:base"
HEADERS = "op,name,source.lsn,source.sequence,file,pos,row,source.ts_ms,db"
MODES = {
    "tombstone": Flatten(add_headers=HEADERS.split(",")),
    "tombstone-bare": Flatten(),
    "rewrite": Flatten("rewrite", add_fields=FIELDS.split(",")),
    "rewrite-with-tombstone": Flatten("rewrite-with-tombstone", add_headers=("op",)),
    "drop": Flatten("drop"),
}
CASES = [(db, mode, "plain") for db in ("mariadb", "postgres") for mode in MODES]
CASES += [(db, mode, "schema") for db in ("mariadb", "postgres") for mode in ("tombstone", "rewrite")]


def real(db: str, mode: str, form: str) -> dict[tuple[int, int], Recorded]:
    path = FIXTURES / "flattened" / f"{db}-kc-{mode}-{form}.jsonl"
    found = [parse(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {(r.partition, r.offset): r for r in found}


def loaded(value: bytes | None, *, plain: bool = False) -> Any:
    found = None if value is None else json.loads(value)
    return found["payload"] if plain and found is not None else found


@pytest.mark.parametrize(("db", "mode", "form"), CASES)
def test_records_are_those_that_the_real_one_made(db: str, mode: str, form: str) -> None:
    want = real(db, mode, form)
    mine = {(r.partition, r.offset): r for r in MODES[mode].apply(read_stream(f"{db}-json_schema-kc"))}
    assert want.keys() == (mine.keys() if form == "plain" else {place for place in mine if place[0] == 0})
    for place, record in want.items():
        assert loaded(record.value) == loaded(mine[place].value, plain=form == "plain")
        told = [(name, value) for name, value in mine[place].headers if not name.startswith("__debezium.context")]
        assert list(record.headers) == told


@pytest.mark.parametrize("db", ["mariadb", "postgres"])
def test_a_delete_is_the_null_of_its_schema(db: str) -> None:
    for form in ("plain", "schema"):
        values = [r.value for r in real(db, "tombstone", form).values()]
        assert None not in values
        assert any(value == b"null" or (value or b"").endswith(b'"payload":null}') for value in values)
