"""The rows that a user chooses, checked before anything is read."""

from ch_sink.errors import AccessDenied, ClickHouseError, StreamFailed, TableError
from ch_sink.trust.subject import Subject
from ch_sink.types.sql import tokenize

__all__ = ["expect_condition"]


def expect_condition(subject: Subject, condition: str) -> None:
    """Raises StreamFailed if ClickHouse does not understand the condition over the table's columns."""
    if not condition:
        return
    table = subject.table.qualified
    try:
        tokenize(condition)
        subject.client.rows(f"SELECT 1 AS one FROM {table} WHERE ({condition}) LIMIT 0", doing=f"look into {table}")
    except (ClickHouseError, TableError) as error:
        if error.temporary or isinstance(error, AccessDenied):
            raise
        raise StreamFailed(
            f"--where {condition} is no condition over {table}: {error}",
            hint=f"Write SQL over its columns: {', '.join(column.name for column in subject.columns)}.",
        ) from None
