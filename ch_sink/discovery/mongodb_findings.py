"""What ``check`` reports about a table for documents: where each column's value comes from, and what updates need."""

from collections.abc import Iterator

from ch_sink.decode.mongodb import DocumentTable
from ch_sink.errors import TableError
from ch_sink.model.policy import Policy
from ch_sink.table.checks import Finding
from ch_sink.table.evolve import alter
from ch_sink.table.model import TargetTable
from ch_sink.types.chtype import parse_type
from ch_sink.types.sql import quote

__all__ = ["document_findings"]


def document_findings(table: TargetTable, policy: Policy) -> Iterator[Finding]:
    """Findings about the columns of a table that takes documents."""
    try:
        documents = DocumentTable(table, policy)
    except TableError as error:
        yield Finding("fail", "documents", str(error), error.hint)
        return
    fields = ", ".join(f"{c.name} ← {'.'.join(c.path)}" for c in documents.columns if c.path)
    whole = documents.document
    if whole is None:
        name = policy.documents.column or "document"
        yield Finding(
            "warn",
            "documents",
            f"no column holds the whole document, only these fields: {fields}. An update that changes part of a "
            "value becomes a dead letter unless a text column holds that value (capture.mode: change_streams)",
            "\n".join(f"{text};" for text in alter(table, [f"ADD COLUMN IF NOT EXISTS {quote(name)} String"])),
        )
        return
    column = table.column(whole.name)
    yield Finding("ok", "documents", f"{whole.name} holds the whole document ({policy.documents.form}); {fields}")
    if column is not None and parse_type(column.type).bare.name == "JSON":
        yield Finding(
            "warn",
            "documents",
            f"{whole.name} is a JSON column: ClickHouse drops nulls and empty documents there, and shows text that "
            "looks like a date as a date. Partial updates are applied to this stored form",
            "A String column keeps documents exactly; JSONExtract… and CAST(document, 'JSON') query it.",
        )
