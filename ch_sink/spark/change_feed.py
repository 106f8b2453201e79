"""`changes`: a function for ``foreachBatch`` that takes rows which are changes already."""

import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ch_sink.config import Config, load_rows
from ch_sink.decode.stated_rows import BUCKET, NUMBER, OP, added_type
from ch_sink.errors import ConfigError
from ch_sink.model.change import Op
from ch_sink.model.policy import ColumnPolicy
from ch_sink.spark.change_rows import BUCKETS, ChangeRows, bucket, expect_served, expect_stated_versions, quoted
from ch_sink.spark.foreach_batch import Given, applied, with_hints
from ch_sink.spark.frame_stream import FrameStream, Known, Span
from ch_sink.stream.tasks import Execute
from ch_sink.table.model import TargetTable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

OPS = {
    "insert": Op.CREATE,
    "update_postimage": Op.UPDATE,
    "update_after": Op.UPDATE,
    "update_preimage": Op.DELETE,
    "update_before": Op.DELETE,
    "delete": Op.DELETE,
}
"""Delta's words for what a row does, and Iceberg's (in any case)."""
FEED = ("_change_type", "_commit_version", "_commit_timestamp", "_change_ordinal", "_commit_snapshot_id")
"""Columns that Delta's change feed and Iceberg's changelog add to the table's own."""
_NUMBERS = {
    "timestamp": "unix_micros({0})",
    # Counted as if in UTC, field by field: a cast to timestamp reads the session's time zone, which differs between
    # sessions, and in which two times of one day may be the same moment.
    "timestamp_ntz": "unix_date(date({0})) * 86400000000 + hour({0}) * 3600000000 + minute({0}) * 60000000"
    " + bigint(extract(SECOND FROM {0}) * 1000000)",
    "date": "unix_date({0})",
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), "bigint({0})"),
}
"""SQL of the number that orders changes, by the type of ``sequence_by`` in Spark."""

TOPIC = "changes"
"""Stands for the topic, and for its id, in the ledger."""

Names = str | Sequence[str]


def changes(
    config: Given,
    *,
    keys: Names,
    sequence_by: str,
    op: str | None = None,
    apply_as_deletes: str | None = None,
    except_column_list: Names = (),
    ignore_null_updates_column_list: Names = (),
) -> "Changes":
    """A function for ``writeStream.foreachBatch``, which applies rows that are changes to a ClickHouse table.

    The table is a ``ReplacingMergeTree(version, is_deleted)``, sorted and partitioned by keys. Of each key the row
    with the highest ``sequence_by`` wins, however late or often it comes.

    Args:
        config: path of a YAML file, or a mapping of what it would hold; it needs no section ``kafka``.
        keys: columns that identify a row.
        sequence_by: column of integers, times or dates that orders the changes of a row, such as the commit; from 0
            (1970; times count in microseconds) to 2^54 - 1.
        op: column of ``insert``, ``update_preimage``, ``update_postimage`` and ``delete``, which is not stored.
        apply_as_deletes: instead of ``op``, an SQL expression that is true of deletes; all other rows are stored.
        except_column_list: columns that are not stored.
        ignore_null_updates_column_list: columns of which a null in an update means that the value stays as it is. The
            changes of a row must come in order then, and images before updates are refused.

    Raises:
        ConfigError: the configuration is wrong. The function itself raises ChSinkError.
    """
    loaded = load_rows(config, topic=TOPIC)
    if loaded.policy().columns != ColumnPolicy():
        raise ConfigError(
            "the section columns applies to the events of a topic",
            hint="Rename and leave out columns in the DataFrame.",
        )
    if op is not None and apply_as_deletes is not None:
        raise ConfigError("op and apply_as_deletes exclude each other", hint="Keep one of them.")
    return Changes(
        loaded, _names(keys), sequence_by, op, apply_as_deletes, _names(except_column_list),
        _names(ignore_null_updates_column_list),
    )  # fmt: skip


def expect_ordered(name: str, kind: str) -> None:
    """Raises ConfigError for a ``sequence_by`` of a type in Spark that does not order changes."""
    if kind not in _NUMBERS:
        raise ConfigError(
            f"sequence_by: column {name} is {kind}, which is neither an integer nor a time",
            hint="Order changes by a commit's number or time.",
        )


def _names(given: Names) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


class Changes:
    """The result of `changes`; pickled, secrets included, where the function runs in a process of Spark's server."""

    def __init__(
        self,
        config: Config,
        keys: tuple[str, ...],
        sequence_by: str,
        op: str | None,
        deletes: str | None,
        left_out: tuple[str, ...],
        ignored_nulls: tuple[str, ...],
    ) -> None:
        if not keys:
            raise ConfigError("keys is empty", hint="Name the columns that identify a row.")
        self._config, self._adds = config.to_task_json(), config.evolve == "add_columns"
        self._keys, self._sequence_by, self._op, self._deletes = keys, sequence_by, op, deletes
        self._left_out, self._ignored_nulls = left_out, ignored_nulls

    def __call__(self, frame: "DataFrame", batch_id: int = 0) -> None:
        """Apply one batch. Raises ChSinkError."""
        del batch_id  # the numbers of the rows say what is new
        config = Config.from_task_json(self._config)
        with with_hints():
            rows = self._coded(frame)
            found = self._measured(rows)
            if found:
                self._expect_order(rows)
                known = Known(TOPIC, {})
                applied(frame, config, known, BUCKETS, lambda stream: self._work(stream, known, rows, found))

    def _work(
        self, stream: FrameStream, known: Known, rows: "DataFrame", found: Mapping[int, tuple[int, int]]
    ) -> tuple[Mapping[int, Span], Execute]:
        expect_served(stream.table, self._keys, dict(rows.dtypes))
        if self._adds:
            _expect_addable(stream.table, dict(rows.dtypes))
        expect_stated_versions(stream.table, stream.highest_version)
        reached = stream.progress(known)
        spans = {b: Span(at := reached.get(b, 0), at + count, count) for b, (count, _) in found.items()}
        least = {b: number for b, (_, number) in found.items()}
        ignored, kinds = frozenset(self._ignored_nulls), dict(rows.dtypes)
        return spans, ChangeRows(self._config, spans, least, self._keys, ignored, kinds).of(rows)

    def _expect_order(self, rows: "DataFrame") -> None:
        """Raises ConfigError where nulls keep values and it is unknown which of two changes of a row comes later.

        A row that is there twice is one change.
        """
        if not self._ignored_nulls:
            return
        keys = [quoted(key) for key in self._keys]
        found = (
            # An insert and an update are in no order, either.
            rows.selectExpr(*keys, NUMBER, f"{OP} = {int(Op.DELETE)} AS {OP}", f"to_json({_EXACTLY}) AS {_ROW}")
            .distinct()
            .groupBy(*keys, NUMBER, OP)
            .agg({_ROW: "count"})
            .where(f"`count({_ROW})` > 1")
            .limit(1)
            .collect()
        )
        for row in found:
            named = ", ".join(f"{key} = {row[key]!r}" for key in self._keys)
            raise ConfigError(
                f"sequence_by: the batch has different changes of the row {named} with the same {self._sequence_by}, "
                "so it is unknown which of them comes later",
                hint="With ignore_null_updates_column_list each change of a row needs a number of its own: order by a "
                "finer column, or make one change of them in the DataFrame.",
            )

    def _coded(self, frame: "DataFrame") -> "DataFrame":
        """The rows with their bucket, number and operation. Raises ConfigError."""
        types = dict(frame.dtypes)
        named = [(key, "keys") for key in self._keys] + [(self._sequence_by, "sequence_by")]
        named += [(self._op, "op")] if self._op is not None else []
        named += [(name, "ignore_null_updates_column_list") for name in self._ignored_nulls]
        named += [(name, "except_column_list") for name in self._left_out]
        for name, option in named:
            if name not in types:
                near = difflib.get_close_matches(name, types, n=1)
                ending = f"; did you mean {near[0]}?" if near else f"; it has {', '.join(types)}"
                raise ConfigError(
                    f"{option}: the DataFrame has no column {name}{ending}", hint="Name a column of the DataFrame."
                )
        for name in self._left_out:
            if name in self._keys:
                raise ConfigError(f"except_column_list has {name}, which is one of the keys", hint="Keep it.")
        expect_ordered(self._sequence_by, kind := types[self._sequence_by])
        hidden = {*self._left_out, *FEED, self._op} - set(self._keys)
        kept = [quoted(name) for name in types if name not in hidden]
        return frame.selectExpr(
            *kept,
            f"{bucket(self._keys)} AS {BUCKET}",
            f"{_NUMBERS[kind].format(quoted(self._sequence_by))} AS {NUMBER}",
            f"{self._code()} AS {OP}",
        )

    def _code(self) -> str:
        if self._op is None:
            stored = f"int({int(Op.UPDATE)})"
            return f"if(coalesce({self._deletes}, false), {int(Op.DELETE)}, {stored})" if self._deletes else stored
        cases = " ".join(f"WHEN '{word}' THEN {int(code)}" for word, code in self._words().items())
        return f"CASE lower({quoted(self._op)}) {cases} END"

    def _words(self) -> dict[str, Op]:
        """The words of ``op``.

        Where nulls keep values there is no image before an update: its delete, if it came alone, would lose them.
        """
        images = ("update_preimage", "update_before") if self._ignored_nulls else ()
        return {word: code for word, code in OPS.items() if word not in images}

    def _measured(self, rows: "DataFrame") -> dict[int, tuple[int, int]]:
        """Bucket → how many rows, and the lowest number. Raises ConfigError for rows that say nothing."""
        found = (
            rows.selectExpr(
                BUCKET, f"{NUMBER} AS least", "1 AS n",
                f"int({OP} IS NULL) AS wordless", f"int({NUMBER} IS NULL) AS unordered",
            )
            .groupBy(BUCKET)
            .agg({"least": "min", "n": "sum", "wordless": "sum", "unordered": "sum"})
            .collect()
        )  # fmt: skip
        totals: dict[str, Any] = {name: sum(row[name] for row in found) for name in _SUMS}
        if totals["sum(wordless)"]:
            raise ConfigError(
                f"op: column {self._op} of {totals['sum(wordless)']} rows is none of {', '.join(self._words())}",
                hint="Translate it in the DataFrame, or use apply_as_deletes."
                if not self._ignored_nulls
                else "With ignore_null_updates_column_list, leave out the images before updates; where a key changes, "
                "send a delete of the old one.",
            )
        if totals["sum(unordered)"]:
            raise ConfigError(
                f"sequence_by: column {self._sequence_by} of {totals['sum(unordered)']} rows is null",
                hint="Every change needs a value to order by.",
            )
        return {int(row[BUCKET]): (int(row["sum(n)"]), int(row["min(least)"])) for row in found}


def _expect_addable(table: TargetTable, types: Mapping[str, str]) -> None:
    """Raises ConfigError for a column that the table lacks and that cannot be added."""
    for name, kind in types.items():
        if table.column(name) is None and name not in (BUCKET, NUMBER, OP) and added_type(kind) is None:
            raise ConfigError(
                f"{table.qualified} lacks column {name}, and evolve: add_columns adds no column of type {kind}",
                hint=f"Add it to the table, or name it in except_column_list: {name}.",
            )


_SUMS = ("sum(wordless)", "sum(unordered)")
_ROW = "__ch_sink_row"
_EXACTLY = "struct(*), map('timestampFormat', '{0}', 'timestampNTZFormat', '{0}')".format("yyyy-MM-dd HH:mm:ss.SSSSSS")
"""A row, with all digits of its times: by itself ``to_json`` writes three."""
