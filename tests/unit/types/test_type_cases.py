"""Every type of every connector, in every mode: bytes as the connector writes them, stored and read back."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

from ch_sink.decode import Decoder
from ch_sink.discovery.sample import sample_schema
from ch_sink.errors import ChSinkError
from ch_sink.model.change import Records
from ch_sink.model.policy import policy_of
from ch_sink.types import clickhouse_type
from ch_sink.types.column import WIDE_YEARS, Column, TypeChoices, Years
from ch_sink.types.connect import SourceType
from tests.support.avro import Topic, envelope
from tests.support.decoding import replacing
from tests.support.engine import Engine
from tests.support.event import chunk_of
from tests.support.one_column import records, stored
from tests.unit.types.type_cases import CASES, Case, avro

WAYS = ("schema", "avro", "comment", "bare")
"""JSON with schema, Avro and plain JSON into the table that ``init`` makes; plain JSON into one without comments."""
A_TABLE = 60
"""Columns that are stored together."""


@dataclass
class Outcome:
    """What became of a case on one way."""

    column: str = ""
    shown: list[bytes | None] | None = None
    fault: str = ""


def expected(case: Case) -> list[bytes | None]:
    """What is to be shown; a column that can be null gets a null behind its values."""
    shown = [v.encode() if isinstance(v, str) else v for _, v in case.values]
    return [*shown, None] if case.schema["optional"] else shown


def avro_records(case: Case, topic: Topic) -> Records:
    """The same change events in Avro."""
    literals: list[Any] = [v for v, _ in case.values] + ([None] if case.schema["optional"] else [])
    schema = envelope([{"name": "id", "type": "long"}, {"name": "x", "type": avro.schema_of(case.schema)}])
    key = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
    block = {"connector": "mysql", "name": "s", "ts_ms": 1, "snapshot": "false", "file": "b.1", "pos": 1}
    keys, values = [], []
    for i, literal in enumerate(literals):
        row = {"id": i, "x": avro.value_of(case.schema, literal)}
        keys.append(topic.write(key, {"id": i}))
        values.append(topic.write(schema, {"before": None, "after": row, "source": block, "op": "c"}))
    return chunk_of(keys, values)


def decoded(
    case: Case, source: SourceType, way: str, choices: TypeChoices | None = None, years: Years = WIDE_YEARS
) -> tuple[str, pa.Array]:
    """The column's type and what the decoder makes of the events. Raises where a record is bad."""
    chosen = clickhouse_type(source, choices)
    comment = source.to_comment() if way != "bare" else ""
    table = replace(replacing((Column("id", "Int64"), Column("x", chosen, comment=comment)), ("id",)), years=years)
    if way == "avro":
        topic = Topic()
        found_events = avro_records(case, topic)
        batch = Decoder(table, policy_of(), registry=topic.registry).decode(found_events)
    else:
        batch = Decoder(table, policy_of()).decode(records(case, schema=way == "schema"))
    assert not batch.bad, batch.bad[0].reason
    return chosen, batch.after["x"].combine_chunks()


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[tuple[str, str, str], Outcome]]:
    """All cases on all ways, stored in few tables."""
    engine = Engine()
    engine.run("CREATE DATABASE d")
    try:
        yield outcomes_of(WAYS, lambda columns: stored(engine, columns))
    finally:
        engine.close()


def outcomes_of(
    ways: Sequence[str],
    store: Callable[[list[tuple[str, pa.Array]]], list[list[bytes | None]]],
    choices: TypeChoices | None = None,
    years: Years = WIDE_YEARS,
) -> dict[tuple[str, str, str], Outcome]:
    """What ``store`` shows of all cases, by family, case and way."""
    found: dict[tuple[str, str, str], Outcome] = {}
    sources = {
        (family, case.what): sample_schema(records(case, schema=True)).fields[1].type
        for family, cases in CASES.items()
        for case in cases
    }
    for way in ways:
        columns: list[tuple[tuple[str, str, str], pa.Array]] = []
        for family, cases in CASES.items():
            for case in cases:
                if way == "avro" and not is_avro(case):
                    continue
                place = (family, case.what, way)
                found[place] = Outcome()
                try:
                    found[place].column, array = decoded(case, sources[family, case.what], way, choices, years)
                    columns.append((place, array))
                except (ChSinkError, AssertionError) as error:
                    found[place].fault = str(error)
        for start in range(0, len(columns), A_TABLE):
            some = columns[start : start + A_TABLE]
            shown = store([(found[place].column, array) for place, array in some])
            for (place, _), cells in zip(some, shown, strict=True):
                found[place].shown = cells
    return found


def is_avro(case: Case) -> bool:
    """Whether the values exist in Avro: numbers for decimals are JSON's own."""
    return "decimal.format" not in case.what and "in JSON" not in case.what


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", CASES)
def test_every_value_comes_back(outcomes: dict[tuple[str, str, str], Outcome], family: str, way: str) -> None:
    wrong = {}
    for case in CASES[family]:
        if (way != "bare" or not case.untold) and (way != "avro" or is_avro(case)):
            found, meant = outcomes[family, case.what, way], Outcome(case.column, expected(case))
            wrong |= {} if found == meant else {case.what: (found, meant)}
    assert wrong == {}


def test_names_of_cases_are_distinct() -> None:
    for found in CASES.values():
        names = [case.what for case in found]
        assert len(set(names)) == len(names)


def test_what_plain_json_cannot_tell_differs_indeed(outcomes: dict[tuple[str, str, str], Outcome]) -> None:
    for family, found in CASES.items():
        for case in found:
            if case.untold:
                assert outcomes[family, case.what, "bare"].shown != expected(case), f"{family}: {case.what}"
