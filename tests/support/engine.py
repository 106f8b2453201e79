"""The real engine inside the test's own OS process (chDB, in memory): what SQL texts are held against.

One engine lives in a process at a time, so it is opened per module and closed after it.
"""

import json
from collections.abc import Iterator, Mapping
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest

FOR_MANY_ROWS = (
    *("compile_expressions", "compile_aggregate_expressions", "compile_sort_description"),
    *("output_format_parallel_formatting", "input_format_parallel_parsing"),
)
"""Settings that are on by default: with them, and several threads, a query of a few rows takes a third longer."""


class Engine:
    """Runs SQL; errors of the engine are raised as they come."""

    def __init__(self) -> None:
        from chdb.session import Session  # it takes a second, and most files do without

        self._folder = TemporaryDirectory(prefix="ch_sink_")
        self._session: Any = Session(self._folder.name)  # type: ignore[no-untyped-call]
        self.run(f"SET {', '.join(f'{name} = 0' for name in FOR_MANY_ROWS)}, max_threads = 1")

    def run(self, sql: str, parameters: Mapping[str, str] | None = None) -> None:
        self._session.query(sql, "TSV", params=dict(parameters or {}))

    def rows(self, sql: str, parameters: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        """The result's rows; 64-bit numbers are ints, decimals texts as JSON gives them."""
        answer = self._session.query(
            f"{sql}\nSETTINGS output_format_json_quote_64bit_integers = 0" if "SETTINGS" not in sql else sql,
            "JSONEachRow",
            params=dict(parameters or {}),
        )
        return [json.loads(line) for line in str(answer).splitlines() if line.strip()]

    def insert(self, table: str, rows: pa.Table) -> None:
        """Insert through Arrow, as the sink does."""
        arrow_table = rows.combine_chunks()
        names = ", ".join(f"`{name}`" for name in arrow_table.column_names)
        self._session.query(f"INSERT INTO {table} ({names}) SELECT * FROM Python(arrow_table)")

    def close(self) -> None:
        self._session.close()
        self._folder.cleanup()


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """An engine with the databases ``d`` and ``t``."""
    opened = Engine()
    opened.run("CREATE DATABASE d")
    opened.run("CREATE DATABASE t")
    yield opened
    opened.close()
