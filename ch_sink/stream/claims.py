"""The job that owns a stream, and whether it is still alive.

The newest claim owns the stream, and the owner checks it before each write. A job that was killed therefore blocks
nobody: the next one claims the stream and continues. Only a claim of a process that is alive on this host is respected.
"""

import os
import socket
import threading
from collections.abc import Collection, Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path

from ch_sink.errors import LedgerConflict, StreamFailed, Superseded
from ch_sink.model.counts import capitalized
from ch_sink.model.policy import ADDED, IDS, IGNORED, KEY_COLUMNS, LEFT_OUT, WHOLE, Origins, Policy
from ch_sink.model.values import is_part
from ch_sink.order import State
from ch_sink.ports import Claim, Execution, Ledger, TableRefilled, Terms
from ch_sink.table.model import Family, TargetTable
from ch_sink.types.chtype import parse_type
from ch_sink.types.column import same_values
from ch_sink.types.sql import columns_in

# Claims that this process holds: several streams may run in one process.
_held: set[tuple[str, str]] = set()
# Claims that this process does not know to be written, and has given up.
_abandoned: set[tuple[str, str]] = set()
_lock = threading.Lock()


def new_claim(stream: str, run_id: str, last: Claim | None, terms: Terms | None = None) -> Claim:
    """The claim that follows ``last``.

    ``terms``: under which rows are stored from now on; None: those of ``last``.

    Raises LedgerConflict if a living process of this host holds ``last``.
    """
    if last is not None and last.run_id != run_id and live(stream, last):
        owner = f"process {last.pid} on this host (run {last.run_id})"
        hint = "Stop that job first, or give this stream another name."
        conflict = LedgerConflict(f"stream {stream!r} is owned by {owner}", hint=hint)
        if _is_of_command(last.run_id):
            conflict.temporary, conflict.hint = True, "Wait until that command ends."
        raise conflict
    with _lock:
        _held.add((stream, run_id))
    number, before = (last.number, last.terms) if last else (0, None)
    made = Claim(number + 1, run_id, socket.gethostname(), os.getpid(), born(os.getpid()))
    return replace(made, terms=before if terms is None else terms)


def _is_of_command(run_id: str) -> bool:
    """Whether a command has claimed the stream, which gives it back: jobs wait for that."""
    return "-" in run_id


def retired(stream: str, claim: Claim) -> Claim:
    """The claim, released."""
    with _lock:
        _held.discard((stream, claim.run_id))
    return replace(claim, released=True)


def forget(stream: str, run_id: str) -> None:
    """Let the stream go without releasing its claim, as if this process had died."""
    with _lock:
        _held.discard((stream, run_id))


def abandon(stream: str, run_id: str) -> None:
    """Give up a claim whose answer never came. ClickHouse may have taken it, or may take it later."""
    with _lock:
        _held.discard((stream, run_id))
        _abandoned.add((stream, run_id))


def abandoned(stream: str, run_id: str) -> bool:
    """Whether this process has given up that run's claim: nobody works under it."""
    with _lock:
        return (stream, run_id) in _abandoned


def mine(claim: Claim | None, newest: Claim | None) -> bool:
    """Whether the newest claim is this one."""
    return claim is not None and newest is not None and (claim.number, claim.run_id) == (newest.number, newest.run_id)


def taken_since(stream: str, before: Claim, owner: Claim | None) -> bool:
    """Whether another job has taken the stream since this job held it under the claim ``before``.

    A job that is known to be dead has lost it.
    """
    if owner is None or mine(before, owner) or owner.number < before.number:
        return False
    if _is_of_command(owner.run_id) or abandoned(stream, owner.run_id):
        return False
    return owner.host != socket.gethostname() or live(stream, owner)


def displaced(stream: str, newest: Claim | None) -> LedgerConflict:
    """The error for a job that lost its stream."""
    by = f"run {newest.run_id} (process {newest.pid} on {newest.host})" if newest else "unknown: its claim is gone"
    error = LedgerConflict(
        f"this job no longer owns stream {stream!r}; the owner is {by}",
        hint="Only one job may work on a stream: stop one of them, or give it its own stream name and table.",
    )
    error.run_id = newest.run_id if newest else ""
    error.temporary = _is_of_command(error.run_id)
    return error


def superseded(stream: str, partition: int) -> Superseded:
    """The error for a task whose work another execution has taken over, under the same claim."""
    return Superseded(
        f"a newer execution of the same task runs partition {partition} of stream {stream!r}",
        hint="Spark restarted the task because this execution was slow or presumed dead; it has stored nothing more.",
    )


def next_execution(stream: str, before: Execution | None, mine: Execution) -> Execution:
    """The execution as it is registered after ``before``, the newest one of its partition.

    Raises LedgerConflict if that is of a later batch: this one was frozen since, and its work has been done.
    """
    own = mine.of_batch
    highest = before.batch if before is not None and before.claim == mine.claim else 0
    if 0 < own < highest:
        raise superseded(stream, mine.partition)
    return replace(mine, number=before.number + 1 if before is not None else 1, batch=max(own, highest))


def live(stream: str, claim: Claim) -> bool:
    """Whether the process that holds the claim is alive. Known on this host only; elsewhere it counts as dead."""
    if claim.released or claim.host != socket.gethostname() or not runs(claim.pid, claim.born):
        return False
    if claim.pid != os.getpid():
        return True
    with _lock:
        return (stream, claim.run_id) in _held


def runs(pid: int, started: str) -> bool:
    """Whether the process of this host that had this id, and this start time as `born` gives it, still runs."""
    return bool(started) and started == born(pid)


def born(pid: int) -> str:
    """Start time of a process in the kernel's ticks, or empty if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return _alive_without_proc(pid)
    fields = stat.rpartition(")")[2].split()
    # A zombie, killed but not yet reaped by its parent, writes nothing any more.
    return "" if fields[0] in "ZX" else fields[19]


def _alive_without_proc(pid: int) -> str:
    if Path("/proc/self").exists():
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        return "?"
    return "?"


def _deciding(table: TargetTable, policy: Policy, key: Collection[str] = ()) -> frozenset[str]:
    """The columns by whose values stored rows are found again. ``key``: the source's names, if they are known."""
    chosen = policy.columns
    found = frozenset((*map(chosen.target, key), *table.added_key(chosen), *chosen.source))
    if table.finds_by_all(key):
        return found | {c.name for c in table.columns}
    # A history finds rows by the key alone.
    return found if table.engine.family is Family.MERGE_TREE else found | table.deciding_columns(())


def types_of(table: TargetTable, policy: Policy) -> Origins:
    """The columns by whose values rows may be found again, whatever the key is, each with its type."""
    names = _deciding(table, policy)
    return tuple(sorted((c.name, c.type) for c in table.source_columns if c.name in names))


def expect_same_terms(
    stream: str, ledger: Ledger, table: TargetTable, policy: Policy, source_table: str = ""
) -> Claim | None:
    """The newest claim of the stream, if what it has stored can be found again, and has a value in every column.

    Rows are found by what decides their place, and those without a key by all of their values. If these columns are
    filled or read otherwise than before, changes and deletes of stored rows would miss them. Changes of another source
    table of the topic say nothing of them. Any other column that is filled otherwise keeps its values in rows that do
    not change; only one that is left out from now on, or a new constant, which is the column's DEFAULT, may.

    Raises StreamFailed.
    """
    last, filled, types = ledger.last_claim(), policy.origins(), types_of(table, policy)
    terms = last.terms if last is not None else None
    same = Terms(filled, source_table, "", policy.readings(), types)
    if last is None or terms is None or replace(terms, table="") == same:
        return last
    totals = ledger.totals()
    before = terms.source_table
    # An event that states more or less of the name than the stream's stops the stream, so none was left out.
    if totals and before != source_table and not (is_part(before, source_table) or is_part(source_table, before)):
        raise StreamFailed(
            f"stream {stream!r} has read the topic's records of {before or 'all source tables'}, and "
            f"source_table is {source_table or 'not set'} now: earlier records of that would be missing",
            hint="Take the change of source_table back, or use another table, and another `stream`.",
        )
    was, now = dict(terms.columns), dict(filled)
    changed = _filled_otherwise(was, now, table, dict(policy.columns.rename))
    profiles = [State.from_json(t.state).profile for t in totals]
    key = frozenset(name for profile in profiles for name in profile.key_columns)
    by_all = table.finds_by_all(key)
    deciding = _deciding(table, policy, key) | (changed if by_all else frozenset())
    stored = _Stored(stream, table, policy, deciding, by_all)
    has_rows = any(t.counts.rows for t in totals) or bool(ledger.facts(TableRefilled))
    if totals:
        # Kafka keys have the columns of key_columns, whether or not that is set.
        leave = {KEY_COLUMNS} if not has_rows or any(profile.key_source for profile in profiles) else set()
        stored.expect_same_readings(dict(terms.readings), leave, has_rows=has_rows)
    if has_rows:
        stored.expect_same_types(dict(terms.types))
    constants = dict(policy.columns.add)
    may = {name for name in changed if now.get(name) == LEFT_OUT or (name in constants and name not in was)}
    changed = (changed & deciding) | (changed - may if has_rows else frozenset())
    if not changed or not totals:
        return last
    found = changed & {*deciding, IDS}
    name = min(found or changed)
    after = now.get(name, f"column {name}")
    new = table.column(name) is None or after in (ADDED, f"field {name}")
    before = was.get(name, LEFT_OUT if new else f"column {name}")
    missed = "later changes would not find these rows" if found else "rows that do not change would stay as they are"
    raise StreamFailed(
        f"stream {stream!r} has stored rows of {table.qualified} with {before} in the column {name!r}, which would be "
        f"filled with {after} now: {missed}",
        hint=f"Take that change of the configuration back, or {stored.fill(from_topic=after == ADDED)}.",
    )


def _filled_otherwise(
    was: Mapping[str, str], now: Mapping[str, str], table: TargetTable, rename: Mapping[str, str]
) -> frozenset[str]:
    """The columns that are filled with something else. ``was``, ``now``: their origins.

    A column that the file no longer names keeps its source, if that is a field of its own name or one that the
    connector adds. A file of many topics masks and renames columns that only some tables have, or will have: a table
    with neither name has no values of it. Rows lack the values of an excluded column in any case.
    """
    same = {name for name, of in was.items() if name not in now and of in (ADDED, f"field {name}")}
    there = {IDS, *(column.name for column in table.columns)}
    there |= {name for name, of in was.items() if of == LEFT_OUT and f"column {name}" not in was.values()}
    there |= {new for old, new in rename.items() if old in there}
    there |= {name for name, of in (*was.items(), *now.items()) if of in (ADDED, WHOLE) or of.startswith("field ")}
    return frozenset(name for name in (was.keys() | now.keys()) & there if was.get(name) != now.get(name)) - same


_READ_BY = {
    "decimal_handling": ("Decimal",),
    "time_precision": ("Date", "Date32", "DateTime", "DateTime64", "Time", "Time64"),
    "binary_handling": ("String", "FixedString"),
}
"""Setting → the types of columns whose values it concerns; others concern those of any type."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """The stored rows of a stream."""

    stream: str
    table: TargetTable
    policy: Policy
    deciding: Collection[str]
    """The columns by whose values they are found again."""
    by_all: bool
    """Whether these are all columns."""

    def expect_same_readings(self, before: Mapping[str, str], leave: Set[str], *, has_rows: bool) -> None:
        """Raises StreamFailed if values of deciding columns would be read as others now.

        It also raises if the setting concerns any column whose source type is not noted. Rows stored under the former
        setting would keep their values, and a comparison would read the whole topic under the present one.

        ``leave``: settings that may change.
        """
        now = dict(self.policy.readings())
        for name in sorted(n for n in (before.keys() | now.keys()) - leave if before.get(n) != now.get(n)):
            kinds = _READ_BY.get(name)
            if kinds is None and name not in (IGNORED, KEY_COLUMNS) and not self.by_all:
                continue  # stored rows are found by their keys, which are never clamped
            read = kinds is not None and has_rows
            found = [c for c in self.table.source_columns if c.name in self.deciding or (read and c.stated is None)]
            concerned = [c for c in found if kinds is None or any(map(parse_type(c.type).holds, kinds))]
            if concerned:
                placed = next((c for c in concerned if c.name in self.deciding), None)
                why = f"{(placed or concerned[0]).name!r} may be read as another value"
                if name == KEY_COLUMNS:
                    why = "other columns identify a row"
                missed = "later changes would not find these rows" if placed else "these rows would stay as they are"
                raise StreamFailed(
                    f"stream {self.stream!r} has stored rows of {self.table.qualified} under {name}: "
                    f"{before.get(name, 'its default')}, and it is {now.get(name, 'its default')} now: "
                    f"{why}, and {missed}",
                    hint=f"Take the change of `{name}` back, or {self.fill()}."
                    + (" Use --against source if the topic holds values of both kinds." if kinds is not None else ""),
                )

    def expect_same_types(self, before: Mapping[str, str]) -> None:
        """Raises StreamFailed if a deciding column holds other values now, as after an ALTER."""
        table, clamped = self.table, self.by_all and self.policy.values.out_of_range != "fail"  # keys never are
        names = {column.name for column in table.columns}
        places = [*(e for e in table.sorting_key if e not in names), table.partition_key or "tuple()"]
        # By its time zone, for instance.
        computed = {name for expression in places for name in columns_in(expression, names)}
        for column in table.source_columns:
            was = before.get(column.name, column.type)
            same = was == column.type if column.name in computed else same_values(was, column.type, clamped=clamped)
            if column.name in self.deciding and not same:
                raise StreamFailed(
                    f"stream {self.stream!r} has stored rows of {table.qualified} with {column.name!r} as {was}, and "
                    f"the column is {column.type} now: later changes may state other values there, and would not find "
                    "these rows",
                    hint=f"{capitalized(self.fill())}.",
                )

    def fill(self, *, from_topic: bool = False) -> str:
        """The operator's next step, after which all rows are stored as the configuration says.

        ``from_topic``: the source does not have what is lacking.
        """
        if self.policy.columns.source:
            return "use another table, and another `stream`"
        against = "--against topic " if from_topic or self.table.engine.family is Family.MERGE_TREE else ""
        return f"fill the table again with `ch_sink resync CONFIG {against}--apply`"
