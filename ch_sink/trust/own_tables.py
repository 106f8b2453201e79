"""The sink's own tables of one stream: what they say of records; and how rows leave them, or the target, physically."""

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field

from ch_sink.clickhouse import EVERY_TYPE, Client
from ch_sink.clickhouse.state_table import StateTable
from ch_sink.config import Config
from ch_sink.ports import Ledger, RowsEdited, TableRefilled
from ch_sink.table.model import Family, TargetTable
from ch_sink.types.chtype import parse_type
from ch_sink.types.sql import OWN, literal, quote


@dataclass(frozen=True, slots=True)
class Noted:
    """Entries of the ledger and the sink's other tables about a topic's records."""

    applied: Mapping[int, int] | None = None
    """Partition → the offset below which everything is applied; None if that is not known."""
    letters: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """Partition and offset of dead letters that are not settled → reason."""
    waiting: Set[tuple[int, int]] = frozenset()
    """Partition and offset of the changes that wait for another row's values."""
    loads: Sequence[TableRefilled] = ()
    """The times that the table was filled from the source."""
    erased: Set[tuple[int, int]] = frozenset()
    """Partition and offset of the changes whose rows were erased."""
    dropped: Mapping[tuple[int, int], str] = field(default_factory=dict)
    """Partition and offset of dead letters that were dropped → reason."""
    outranked: Set[tuple[int, int]] = frozenset()
    """Partition and offset of dead letters whose retry found a newer change."""
    stored: Set[int] | None = None
    """Versions of the rows that the table has of a key, marks included; None if they do not tell events apart."""


@dataclass(frozen=True, slots=True)
class OwnTables:
    """A stream's tables of dead letters, hand-over rows and waiting changes."""

    client: Client
    stream: str
    dead_letters: StateTable
    handover: StateTable
    pending: StateTable
    cluster: str | None = None
    """The cluster on which the tables were created, if any."""
    ledger: StateTable | None = None
    """The ledger, whose states name keys with two rows; None if it is not in ClickHouse."""

    def noted(self, topic_id: str, applied: dict[int, int]) -> Noted:
        """The notes of these tables about a topic's records. Raises ClickHouseError."""
        named = {"stream": self.stream, "topic_id": topic_id}
        mine = "stream = {stream:String} AND topic_id = {topic_id:String}"
        outcome = "outcome" if "outcome" in self.dead_letters.columns() else "''"
        letters = self.dead_letters.rows(
            f"SELECT partition, offset, kind, reason, if(retried IS NULL, 'open', {outcome}) AS now FROM $table FINAL "
            f"WHERE {mine} AND now IN ('open', 'dropped', 'superseded')",
            **named,
        )
        reasons: dict[str, dict[tuple[int, int], str]] = {"open": {}, "dropped": {}, "superseded": {}}
        for r in letters:
            reasons[str(r["now"])][int(r["partition"]), int(r["offset"])] = f"{r['kind']}: {r['reason']}"
        waiting = self.pending.rows(
            f"SELECT partition, offset FROM $table FINAL WHERE {mine} AND resolved = 0", **named
        )
        return Noted(
            applied,
            reasons["open"],
            frozenset((int(r["partition"]), int(r["offset"])) for r in waiting),
            dropped=reasons["dropped"],
            outranked=frozenset(reasons["superseded"]),
        )


def own_tables(config: Config, client: Client) -> OwnTables:
    """Those of a configuration's stream."""
    place, names = config.state_database, config.state_tables
    return OwnTables(
        client,
        config.stream_name,
        StateTable(client, place, names.dead_letters),
        StateTable(client, place, names.handover),
        StateTable(client, place, names.pending),
        config.clickhouse.cluster,
        StateTable(client, place, names.ledger),
    )


ALL_ROWS = "SETTINGS final = 0"
"""Of subqueries in mutations, which run with the settings of the server's default profile, not of the request."""

_SETTINGS: dict[str, str | int] = {
    # On a replicated table, done on all replicas; else when the mutation is done.
    "mutations_sync": 2,
    # Which rows are meant does not change while the statement runs: see the callers.
    "allow_nondeterministic_mutations": 1,
    "max_bytes_before_external_group_by": 1 << 30,
    **EVERY_TYPE,
}


def count(client: Client, table: TargetTable | StateTable, condition: str) -> int:
    """How many stored rows meet the condition. Raises ClickHouseError."""
    [found] = client.rows(
        f"SELECT count() AS {OWN}n FROM {table.qualified} WHERE {condition}",
        settings=_SETTINGS,
        of=table,
        doing=f"count rows of {table.qualified}",
    )
    return int(found[f"{OWN}n"])


def delete_rows(client: Client, table: str, condition: str, *, cluster: str | None = None) -> None:
    """Rewrite the table's parts without the rows that meet the condition; returns when that is done.

    The former parts stay on the disk until the server clears them, after ``old_parts_lifetime`` (8 minutes).

    Raises ClickHouseError.
    """
    on = f" ON CLUSTER {quote(cluster)}" if cluster else ""
    client.command(
        f"ALTER TABLE {table}{on} DELETE WHERE {condition}", settings=_SETTINGS, doing=f"delete rows of {table}"
    )


def states_of_keys(stream: str, keys: Collection[str]) -> str:
    """The condition of the ledger's entries whose states name one of these Kafka keys (hex) in a swap of keys."""
    named = ", ".join(literal(f'"{key}":') for key in sorted(keys))
    return f"stream = {literal(stream)} AND multiSearchAny(state, [{named}])" if named else "0"


def forget_keys(client: Client, ledger: str, stream: str, keys: Collection[str], *, cluster: str | None = None) -> None:
    """Rewrite the ledger's entries without these Kafka keys (hex); returns when done. Raises ClickHouseError."""
    on, entry = f" ON CLUSTER {quote(cluster)}" if cluster else "", f'"({"|".join(sorted(keys))})":"[^"]*"'
    others = f"replaceRegexpAll(replaceRegexpAll(state, {literal(',' + entry)}, ''), {literal(entry + ',?')}, '')"
    client.command(
        f"ALTER TABLE {ledger}{on} UPDATE state = {others} WHERE {states_of_keys(stream, keys)}",
        settings=_SETTINGS,
        doing=f"rewrite states of {ledger}",
    )


def note_removed(
    ledger: Ledger,
    topic_id: str,
    applied: Mapping[int, int],
    top: int,
    skip: Collection[tuple[int, int]] = (),
    left: int | None = None,
) -> None:
    """Let the ledger know before it happens, so that a look for lost rows does not rely on these rows.

    Args:
        top: the highest version among them.
        skip: partition and offset of changes that are not to be applied again.
        left: the highest version of the other rows, −1 if there are none, if it may be lower from now on.
    """
    since = 0 if left is None else len(ledger.facts(TableRefilled))
    ledger.note(
        *(
            RowsEdited(
                topic_id,
                partition,
                offset,
                "removed",
                since,
                top=str(top),
                skip=tuple(o for p, o in sorted(skip) if p == partition),
                left="" if left is None else str(left),
            )
            for partition, offset in sorted(applied.items())
        )
    )


def mark_of(table: TargetTable) -> str:
    """The condition of a deleted row; empty if the table marks none."""
    engine = table.engine
    if engine.family is not Family.REPLACING:
        return ""
    if engine.is_deleted_column:
        return f"{quote(engine.is_deleted_column)} = 1"
    return f"{quote(engine.sign_column)} < 0" if engine.sign_column else ""


def place_of(table: TargetTable) -> str:
    """The key by which rows replace each other, as one expression that is never null.

    Rows of one sorting key in several table partitions count as one place: they leave together.
    """
    nullable = any(parse_type(c.type).nullable for c in table.columns if c.name in table.place_columns)
    elements = table.sorting_elements
    if not nullable:
        return f"tuple({', '.join(elements)})"
    parts = ", ".join(f"isNull({e}), ifNull(toString({e}), '')" for e in elements)
    return f"sipHash128({parts})"
