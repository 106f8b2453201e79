"""Preconditions of a target table: what holds, what is risky, what fails, each with the SQL that fixes it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from ch_sink.errors import TableError
from ch_sink.model.policy import ChangePolicy
from ch_sink.order import layout_for
from ch_sink.table.ddl import policy_condition, policy_name
from ch_sink.table.detect import unused_mark, with_mark
from ch_sink.table.engine_full import removing_ttl
from ch_sink.table.evolve import alter, not_found_again, window_setting
from ch_sink.table.facts import ServerFacts
from ch_sink.table.model import Family, TargetTable, clashes
from ch_sink.table.spec import DEDUP_SECONDS
from ch_sink.table.views import partitions_apart, view_of
from ch_sink.types.chtype import parse_type
from ch_sink.types.sql import columns_in, quote

Level = Literal["ok", "warn", "fail"]

_WANTED_WINDOW = 10_000
_DAY = 86_400
ANOTHER_TABLE = "Name a new table in clickhouse.table, fill it, and exchange the two (docs/migrating.md)."


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of ``ch_sink check``. ``remedy`` is SQL or configuration ready to paste, if there is one."""

    level: Level
    title: str
    detail: str
    remedy: str | None = None


@dataclass(frozen=True, slots=True)
class Situation:
    """The subject of the checks. ``key`` is empty for a topic without keys."""

    table: TargetTable
    key: tuple[str, ...]
    policy: ChangePolicy
    server: ServerFacts | None = None
    source_columns: tuple[str, ...] = ()
    """The source's column names, if known."""
    inserts_per_batch: int = 0
    """The most inserts that one micro-batch sends to the table; 0 if unknown."""

    @property
    def outside_key(self) -> tuple[str, ...]:
        """Source columns that decide a row's place and are not in the key."""
        mine = {c.name for c in self.table.source_columns}
        return tuple(sorted(self.table.deciding_columns(self.key) & mine))

    @property
    def appends(self) -> bool:
        return self.table.engine.family is Family.MERGE_TREE


def check_table(
    table: TargetTable,
    key_columns: Sequence[str],
    policy: ChangePolicy,
    *,
    server: ServerFacts | None = None,
    source_columns: Sequence[str] = (),
    inserts_per_batch: int = 0,
) -> list[Finding]:
    """All findings about a detected table, in a fixed order. Never raises for what it finds."""
    columns = tuple(source_columns)
    here = Situation(table, tuple(key_columns), policy, server, columns, inserts_per_batch)
    return [finding for check in _CHECKS for finding in check(here)]


def _engine(here: Situation) -> Iterable[Finding]:
    table, engine = here.table, here.table.engine
    roles = (("version", engine.version_column), ("sign", engine.sign_column), ("is_deleted", engine.is_deleted_column))
    text = ", ".join(f"{role} {name}" for role, name in roles if name)
    where = f", through Distributed {table.qualified}" if table.distributed else ""
    yield Finding("ok", "engine", f"{engine.name}{where}" + (f" ({text})" if text else ""))
    if (deletes := deletes_finding(table, here.policy)) is not None:
        yield deletes


def deletes_finding(table: TargetTable, policy: ChangePolicy) -> Finding | None:
    """The finding about deletes if the engine does not mark them; None if it does."""
    engine, ignored = table.engine, policy.deletes == "ignore"
    if engine.family is not Family.REPLACING or engine.is_deleted_column or engine.sign_column:
        return None
    level: Level = "warn" if ignored else "fail"
    effect = "deletes are ignored (deletes: ignore)" if ignored else "the first delete stops the stream"
    why, remedy = (
        "has no is_deleted and no sign column",
        alter(table, ["ADD COLUMN IF NOT EXISTS `_sign` Int8 DEFAULT 1"]),
    )
    if mark := unused_mark(table):
        why, remedy = f"does not know that {mark.name} marks deleted rows, and shows them", with_mark(table, mark.name)
        if mark.type != "UInt8":
            why = f"{why}; and a mark of the type {mark.type} is none that an engine takes"
            return Finding("fail", "deletes", f"{engine.name}({engine.version_column}) {why}", ANOTHER_TABLE)
    detail = f"{engine.name}({engine.version_column}) {why}: {effect}"
    return Finding(level, "deletes", detail, "\n".join(f"{text};" for text in remedy))


def key_finding(table: TargetTable, key: Sequence[str]) -> Finding | None:
    """Why the table cannot keep rows of different keys apart; None if it can."""
    if missing := [name for name in key if table.column(name) is None]:
        return Finding("fail", "key", f"{table.qualified} lacks the key column {', '.join(missing)}", ANOTHER_TABLE)
    lacking = [name for name in key if name not in table.sorting_key]
    if not lacking or table.engine.family is Family.MERGE_TREE:
        return None
    return Finding(
        "fail",
        "sorting key",
        f"ORDER BY ({', '.join(table.sorting_key)}) of {table.qualified} lacks the key column {', '.join(lacking)}: "
        "the engine would merge different rows of the source",
        f"Recreate the table with ORDER BY ({', '.join(quote(n) for n in key)}), or state that in init.order_by and "
        "fill the table again with `ch_sink resync CONFIG --apply`.",
    )


def expect_key(table: TargetTable, key: Sequence[str]) -> None:
    """Raises TableError if the table cannot keep rows of different keys apart."""
    if (found := key_finding(table, key)) is not None:
        raise TableError(found.detail, hint=found.remedy)


def _version(here: Situation) -> Iterable[Finding]:
    name = here.table.engine.version_column
    column = here.table.column(name) if name else None
    if column is None:
        return
    try:
        layout = layout_for(column.type)
    except TableError as error:
        yield Finding("fail", "version column", f"{column.name}: {error}", "Recreate the table with UInt128.")
        return
    timed = layout.kind == "time"
    if timed and here.table.engine.family is Family.VERSIONED_COLLAPSING:
        yield Finding(
            "fail",
            "version column",
            f"{column.name} {column.type}: source times tie, and this engine cancels rows of equal versions",
            "Recreate the table with a version column UInt128.",
        )
    elif timed and here.table.engine.family is Family.REPLACING and (moving := here.table.moves_by(here.key)):
        yield Finding(
            "fail",
            "version column",
            f"{column.name} {column.type} orders by source time, and {', '.join(sorted(moving))} outside the key "
            "decides where a row is: of a row and the delete mark that it leaves behind in one moment, none is newer",
            "Recreate the table with a version column UInt128, or sort and partition it by columns of the key only.",
        )
    elif timed:
        yield Finding(
            "warn",
            "version column",
            f"{column.name} {column.type} orders by source time: changes of one key within its precision tie, "
            "and the last inserted wins",
        )
    else:
        yield Finding("ok", "version column", f"{column.name} {column.type}")


def _reserved_names(here: Situation) -> Iterable[Finding]:
    """Columns that the sink fills itself and that the source has as well."""
    version = here.table.engine.version_column
    ignored = here.policy.evolve == "ignore"
    for name in sorted(here.table.system_columns & set(here.source_columns)):
        what = "its versions" if name == version else "signs, deletes, versions or operations"
        yield Finding(
            "warn" if ignored else "fail",
            "version column" if name == version else "columns",
            f"{name} is also a column of the source: the sink writes {what} there, "
            + ("the source's values are left out" if ignored else "and stops at the first event"),
            "Rename the column at the source or with Kafka Connect's ReplaceField, create the table with "
            "another name for the sink's own column, or set evolve: ignore to leave the source's values out.",
        )


def _key(here: Situation) -> Iterable[Finding]:
    table = here.table
    if not here.key:
        if here.appends:
            anew = [c for c in table.shown_anew if here.source_columns and c.name not in here.source_columns]
            for column in anew:
                why, statements = not_found_again(table, column)
                why += ": the first delete or update stops the stream"
                yield Finding("warn", "key", why, "\n".join(f"{text};" for text in statements))
            if not anew:
                yield Finding("ok", "key", "none: rows are kept as a multiset")
            yield Finding(
                "warn",
                "before images",
                "rows without a key are only exact with whole before images",
                "At the source: ALTER TABLE … REPLICA IDENTITY FULL (PostgreSQL), binlog_row_image = FULL (MySQL).",
            )
        else:
            yield Finding(
                "fail",
                "key",
                f"the topic has no keys, and {table.engine.name} would merge different rows",
                "Set key_columns, or set engine: append and create the table with `ch_sink init`.",
            )
        return
    if (lacking := key_finding(table, here.key)) is not None:
        yield lacking
    else:
        yield Finding("ok", "sorting key", f"({', '.join(table.sorting_key)}) contains the key ({', '.join(here.key)})")
    yield from _unfilled(here)
    nullable = [n for n in here.key if (c := table.column(n)) is not None and parse_type(c.type).nullable]
    if nullable:
        yield Finding(
            "warn", "key", f"{', '.join(nullable)} can be null: ClickHouse sorts all nulls of it as one value"
        )


def _unfilled(here: Situation) -> Iterable[Finding]:
    """Columns of the sorting key whose value no event and no setting states."""
    table, names = here.table, [c.name for c in here.table.columns if not c.default_kind]
    filled = {*here.source_columns, *here.key, *table.system_columns, *(name for name, _ in table.added)}
    unfilled = sorted(columns_in(", ".join(table.sorting_elements) or "tuple()", names) - filled)
    if here.source_columns and unfilled:
        yield Finding(
            "warn",
            "sorting key",
            f"no event states {', '.join(unfilled)}: rows of the stream have the default there, and do not replace "
            "rows to which another writer gave other values",
            "columns:\n  add:\n" + "\n".join(f"    {name}: \"'…'\"" for name in unfilled),
        )


def _places(here: Situation) -> Iterable[Finding]:
    if here.appends or not here.key or not here.outside_key:
        return
    names = [c.name for c in here.table.columns]
    outside = ", ".join(here.outside_key)
    yield Finding(
        "warn",
        "place",
        f"{outside} decides a row's place but is not in the key: when it changes, the row must leave its old place, "
        "so every key of a chunk is looked up in the table",
        "If ORDER BY does not begin with the key, a data-skipping index on the key makes that fast in a large table: "
        "INDEX i id TYPE bloom_filter.",
    )
    moving = sorted(columns_in(here.table.partition_key or "tuple()", names) & set(here.outside_key))
    if moving:
        unmerged = "; rows of one key in two partitions never merge"
        yield Finding(
            "warn", "partition", f"PARTITION BY {here.table.partition_key} uses {', '.join(moving)}{unmerged}"
        )
    if moving and partitions_apart(here.table):
        yield Finding(
            "warn",
            "partition",
            "FINAL may show the old row of a key that changed its partition, or none; read the current-state "
            "view, or set do_not_merge_across_partitions_select_final = 1",
            f"{view_of(here.table, here.key)};",
        )


def _window(here: Situation) -> Iterable[Finding]:
    table = here.table
    setting = window_setting(table)
    tolerant = table.engine.family is Family.REPLACING
    need = max(2 * here.inserts_per_batch, 1)
    remedy = "\n".join(f"{text};" for text in alter(table, [f"MODIFY SETTING {setting} = {max(_WANTED_WINDOW, need)}"]))
    if table.dedup_window == 0:
        yield Finding(
            "warn" if tolerant else "fail",
            "deduplication",
            f"{setting} is 0: an insert that is retried after a timeout is stored twice"
            + (", until this engine has merged the copies" if tolerant else ""),
            remedy,
        )
    elif table.dedup_window < need or table.dedup_window < 100:
        yield Finding(
            "warn", "deduplication", f"{setting} = {table.dedup_window} is too small for the inserts of a batch", remedy
        )
    else:
        yield Finding("ok", "deduplication", f"{setting} = {table.dedup_window}")
    if 0 < table.dedup_window_seconds < _DAY and table.dedup_window:
        yield Finding(
            "warn",
            "deduplication",
            f"{setting}_seconds = {table.dedup_window_seconds}: tokens are forgotten after a longer outage",
            "\n".join(f"{t};" for t in alter(table, [f"MODIFY SETTING {setting}_seconds = {DEDUP_SECONDS}"])),
        )


def _settings(here: Situation) -> Iterable[Finding]:
    for name, value in here.server.fixed_settings if here.server is not None else ():
        yield Finding(
            "fail",
            "settings",
            f"user {here.server.user if here.server else ''} may not change {name} ({value or 'empty'}), on which "
            "inserts depend: changes would be stored twice or lost",
            f"Remove the constraint on {name} from the user's profile.",
        )


def _expiry(here: Situation) -> Iterable[Finding]:
    table = here.table
    names = [c.name for c in table.columns]
    ttl = removing_ttl(table.ttl)
    used = columns_in(ttl or "tuple()", names)
    if ttl:
        yield Finding(
            "warn",
            "TTL",
            f"TTL {ttl} removes rows that the source still has: the table then differs from the source. If "
            "it came by ALTER, earlier delete marks expire first and deleted rows are back: `resync` puts that right",
        )
    if used & table.system_columns:
        yield Finding(
            "warn",
            "TTL",
            f"it removes rows by {', '.join(sorted(used & table.system_columns))}: once a delete row is gone, a late "
            "older event brings the row back",
        )
    for name, value in table.cleanups:
        yield Finding(
            "warn",
            "cleanup",
            f"{name} = {value} may remove delete rows: a late older event then brings the row back, and a table that "
            "lost its newest rows is not noticed",
            "\n".join(f"{text};" for text in alter(table, [f"RESET SETTING {name}"])),
        )


def _row_policies(here: Situation) -> Iterable[Finding]:
    server, table = here.server, here.table
    if server is None or not server.policies:
        return
    for policy in server.policies:
        used = columns_in(policy.condition, [c.name for c in table.columns]) & table.system_columns
        if used and not server.policies_after_final:
            yield Finding(
                "fail",
                "row policy",
                f"{policy.name} ({policy.condition}): this server ({server.version}) applies it before FINAL, so that "
                f"its readers see deleted rows again, also in {quote(table.name + '_current')}",
                f"Drop the policy, and grant readers {quote(table.name + '_current')} instead of the table. Or, on "
                "25.12 and later, set apply_row_policy_after_final = 1 in their profile and in that of this user.",
            )
        elif used:
            yield Finding(
                "ok", "row policy", f"{policy.name} ({policy.condition}) hides deleted rows under FINAL; without FINAL "
                "older versions of a deleted row show until parts are merged",
            )  # fmt: skip
        wanted = policy_condition(table.engine) or "none: the engine marks no deleted row"
        if policy.name == policy_name(table.name) and policy.condition.replace("`", "") != wanted.replace("`", ""):
            yield Finding(
                "fail",
                "row policy",
                f"{policy.name} ({policy.condition}) is of another engine; that of {table.engine.name} is {wanted}",
                "`ch_sink init CONFIG --apply` replaces it.",
            )
        if server.user and policy.concerns(server.user):
            yield Finding(
                "fail",
                "row policy",
                policy.binds(server.user),
                policy.spare(server.user, table.qualified),
            )


def _letter_case(here: Situation) -> Iterable[Finding]:
    for first, second in clashes((*(c.name for c in here.table.columns), *here.source_columns)):
        yield Finding(
            "warn", "columns", f"{first} and {second} differ by letter case only; names are compared as written"
        )


_CHECKS: tuple[Callable[[Situation], Iterable[Finding]], ...] = (
    _engine,
    _version,
    _reserved_names,
    _key,
    _places,
    _window,
    _settings,
    _expiry,
    _row_policies,
    _letter_case,
)
