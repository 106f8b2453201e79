"""The connectors' documents: their sample events as printed there, and streams put together from them."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from ch_sink.decode import Decoder
from ch_sink.model.change import ChangeBatch, Records
from ch_sink.model.policy import Policy, policy_of
from ch_sink.types.arrow import arrow_type
from tests.model import History, KafkaRecord, Layout, draw_plan
from tests.model.reference import difference, sign_faults
from tests.model.wire import dumps, partition_of
from tests.support.harness import ENGINES, Run, target_table

__all__ = ["FOLDER", "KEYED", "Stream", "decode", "faults_of", "rows_of", "run_of", "sample", "text"]

FOLDER = Path(__file__).parent.parent / "fixtures" / "documents"
KEYED = tuple(name for name in ENGINES if name != "append without key")

_REPAIRS = (
    (re.compile(r"[ \t]+\(\d+\)(?=[ \t]*\n)"), ""),  # callouts: (1)
    (re.compile(r"<>"), ""),  # a callout that lost its number
    (re.compile(r"\{\s*\.\.\.\s*\}"), "null"),  # a schema left out
    (re.compile(r"^\s*\.\.\.\s*\n", re.MULTILINE), ""),  # fields left out
    (re.compile(r'("schema": null,)\s*\},'), r"\1"),  # a brace too many
    (re.compile(r",(\s*[}\]])"), r"\1"),  # trailing commas
)
"""What is done to a sample that is not JSON, in this order; nothing else is."""


def text(source: str, name: str) -> str:
    """The sample as the document prints it."""
    return (FOLDER / source / f"{name}.json").read_text()


def sample(source: str, name: str) -> Any:
    """The sample as a document, after the repairs above if it needs them."""
    found = text(source, name)
    for pattern, instead in _REPAIRS:
        found = pattern.sub(instead, found)
    return json.loads(found)


def decode(layout: Layout, *pairs: tuple[Any, Any]) -> ChangeBatch:
    """The product's reading of keys and values."""
    keys, values = ([None if d is None else dumps(d) for d in column] for column in zip(*pairs, strict=True))
    records = Records("t", 0, np.arange(len(keys)), np.zeros(len(keys), dtype=np.int64), list(keys), list(values))
    return Decoder(target_table(layout, ENGINES["replacing"]), policy_of(), want_before=True).decode(records)


_Sent = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int | None]


@dataclass(slots=True)
class Stream:
    """Records of a topic, in the order of their sending."""

    layout: Layout
    connector: Any
    encoding: Literal["plain", "schema"] = "schema"
    sent: list[_Sent] = field(default_factory=list)

    def send(self, key: Any, value: Any, *, partition: int | None = None, **headers: Any) -> None:
        """One record of JSON documents; ``plain`` drops the schemas, as ``schemas.enable=false`` does.

        ``partition``: by default that of the key's hash. Headers: ``newkey`` and ``oldkey``, keys as documents.
        """
        marks = [(f"__debezium.{name}", dumps(document)) for name, document in headers.items()]
        self.sent.append((self._bytes(key), self._bytes(value), marks, partition))

    def _bytes(self, document: Any) -> bytes | None:
        if document is None:
            return None
        enveloped = isinstance(document, dict) and "payload" in document
        return dumps(document["payload"] if enveloped and self.encoding == "plain" else document)

    def history(self, truth: list[dict[str, Any]], partitions: int) -> History:
        """As Kafka holds it: by the key's hash; records without a key in the first partition."""
        records: dict[int, list[KafkaRecord]] = {p: [] for p in range(partitions)}
        for time, (key, value, headers, place) in enumerate(self.sent):
            at = 0 if key is None else partition_of(key, partitions)
            home = records[at if place is None else place]
            home.append(KafkaRecord(len(home), key, value, headers, 1_700_000_000_000 + time))
        starts, ends = dict.fromkeys(records, 0), {p: len(found) for p, found in records.items()}
        return History(
            "topic", "name", self.connector, "full", self.encoding, self.layout, records, starts, ends, truth, []
        )


def run_of(
    history: History, engine: str, seed: int, policy: Policy | None = None, stored: Sequence[dict[str, Any]] = ()
) -> Run:
    """Run the stream in one way of cutting, interleaving and dying.

    ``stored``: rows that something else wrote to the table before, at version 0.
    """
    chosen = policy or policy_of(on_bad_record="fail")
    table = target_table(history.layout, ENGINES[engine])
    schema = pa.schema([(c.name, arrow_type(c.type)) for c in table.source_columns])
    run = Run(
        history,
        ENGINES[engine],
        policy=chosen,
        decoder=lambda want: Decoder(table, chosen, want_before=want),
        schema=schema,
    )
    system = {"_version": bytes(16), "_is_deleted": 0, "_sign": 1, "_op": "r"}
    there = {name: value for name, value in system.items() if table.column(name) is not None}
    run.table.put({n: v.encode() if isinstance(v, str) else v for n, v in row.items()} | there for row in stored)
    run.run(draw_plan(seed, history))
    return run


def faults_of(history: History, engine: str, seed: int, stored: Sequence[dict[str, Any]] = ()) -> list[str]:
    """What is wrong at the end of such a run."""
    run = run_of(history, engine, seed, stored=stored)
    faults = list(run.between)
    if wrong := difference(history, rows_of(run)):
        faults.append(wrong)
    if run.letters.stored:
        faults.append(f"dead letters: {run.letters.stored}")
    if engine in ("collapsing", "versioned"):
        faults += sign_faults(history.table, [_plain(row) for row in run.table.rows], "_sign", history.truth)
    return faults


def rows_of(run: Run) -> list[dict[str, Any]]:
    """The table as its current-state view shows it."""
    return [_plain(row) for row in run.table.current()]


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {n: v.decode() if isinstance(v, bytes) and n != "_version" else v for n, v in row.items()}
