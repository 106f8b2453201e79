"""`verify --against source` with the recorded sources' final rows: what is read equals what the stream stored."""

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest

from ch_sink.clickhouse import Client
from ch_sink.model.policy import ColumnPolicy
from ch_sink.snapshot.reader import Value
from ch_sink.table.spec import chosen_schema
from ch_sink.trust.report import Report
from ch_sink.trust.subject import Options, Subject
from ch_sink.trust.verify import verified
from tests.support.choose import some
from tests.support.fixtures import TruthTable, read_truth, topic_of
from tests.support.recorded import CASES, CHANGED, KEYLESS, POLICY, one_encoding_each
from tests.support.stream import Feed, make_table, schema_of, typed_stream
from tests.support.trust import subject_of

pytestmark = pytest.mark.integration
WITH_TYPES = [(stream, table) for stream, table in CASES if stream.endswith(("json_schema", "avro", "json_plain"))]
WITH_SCHEMA = [(stream, table) for stream, table in WITH_TYPES if not stream.endswith("plain")]


@dataclass
class FinalRows:
    """A source that has the rows of a recorded truth."""

    source: str
    truth: TruthTable

    def position(self) -> int:
        return 1

    def columns(self) -> dict[str, str]:
        return {str(c["name"]): str(c["type"]) for c in self.truth.columns}

    def rows(self, names: Sequence[str], size: int) -> Iterator[list[tuple[Value, ...]]]:
        kinds = self.columns()
        at = [self.truth.names.index(name) for name in names]
        yield [
            tuple(self._as_read(kinds[n], row[i]) for n, i in zip(names, at, strict=True)) for row in self.truth.rows
        ]

    def _as_read(self, kind: str, text: str | None) -> Value:
        binary = re.match(r"(binary|varbinary|\w*blob|bytea)\b", kind)
        if text is not None and self.source == "mariadb" and kind.startswith("bit("):
            return int(text, 2).to_bytes(-(-len(text) // 8), "big")
        if text is not None and self.source == "mariadb" and kind == "point":
            x, y = map(float, text.removeprefix("POINT(").removesuffix(")").split())
            return bytes(4) + struct.pack("<BIdd", 1, 1, x, y)
        if text is None or not binary:
            return text
        return "\\x" + text.removeprefix("\\x") if self.source == "postgres" else bytes.fromhex(text)

    def close(self) -> None:
        pass


def subject(client: Client, database: str, stream: str, table: str, *, masked: bool = False) -> Subject:
    """``masked``: all columns outside the key."""
    source = stream.split("-")[0]
    schema = schema_of(typed_stream(stream, table), table)
    engine = "append" if table in KEYLESS else "replacing"
    keys = [f.name for f in schema.key]
    chosen = ColumnPolicy(mask=tuple((f.name, "sha256") for f in schema.fields if masked and f.name not in keys))
    schema, policy = chosen_schema(schema, chosen), replace(POLICY, columns=chosen)
    target = make_table(client, database, table, schema, engine=engine, policy=policy)
    feed = Feed(client, database, target, stream, topic_of(stream, table), policy)
    feed.run()
    made = subject_of(client, database, feed, stream, tuple(f.name for f in schema.key))
    changed = {c.column for c in CHANGED if (c.source, c.table) == (source, table)}
    if (source, table) == ("postgres", "all_types"):
        changed |= {"c_char", "c_inet"}  # the recording cast them to text, which changes them; a COPY does not
    columns = tuple(c for c in made.columns if c.name not in changed or c.name in made.key)
    reader = FinalRows(source, read_truth(source)[table])
    return replace(made, columns=columns, schema=schema, source=lambda: reader)


def report_of(wanted: Subject) -> Report:
    with verified(wanted, Options(against="source", patience=0)) as found:
        return found.report


@pytest.mark.parametrize(("stream", "table"), some(WITH_TYPES, one_encoding_each(WITH_TYPES)))
def test_what_is_read_equals_what_was_streamed(client: Client, database: str, stream: str, table: str) -> None:
    if (stream.split("-")[0], table) == ("mariadb", "oddkey"):
        pytest.skip("the connector changed values of the key")
    report = report_of(subject(client, database, stream, table))
    assert (report.missing, report.extra, report.different) == (0, 0, 0), report.examples
    dropped = ("v",) if table == "ac" else ()  # the source has it no more
    assert report.left_out == dropped


@pytest.mark.parametrize(("stream", "table"), some(WITH_SCHEMA, [("mariadb-json_schema", "nn")]))
def test_masks_of_what_is_read_equal_masks_of_what_was_streamed(
    client: Client, database: str, stream: str, table: str
) -> None:
    if table == "ac":
        pytest.skip("the stream does not mask the default of a column that was added later")
    if (stream.split("-")[0], table) == ("mariadb", "oddkey"):
        pytest.skip("the connector changed values of the key")
    wanted = subject(client, database, stream, table, masked=True)
    report = report_of(wanted)
    assert (report.missing, report.extra, report.different) == (0, 0, 0), report.examples
    assert wanted.schema is not None
    unmasked = {f.name: f.unmasked for f in wanted.schema.fields if f.unmasked is not None}
    text = {n for n, t in unmasked.items() if t.kind in ("array", "map") or (t.name or "").endswith("geometry.Point")}
    if stream.startswith("postgres"):
        text |= {n for n, t in unmasked.items() if (t.name or "").endswith("ZonedTimestamp")}
    assert set(report.left_out) <= text, "only what the connector writes in a form of its own is not compared"
