"""The sink's own tables of one stream, as the commands on single keys need them."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from ch_sink.clickhouse import Client
from ch_sink.clickhouse.state_table import StateTable
from ch_sink.config import Config
from ch_sink.ports import TableRefilled


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
    """Where a stream keeps dead letters, hand-over rows and waiting changes."""

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
        """What they say of a topic's records. Raises ClickHouseError."""
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
    place, names = config.state_database, config.tables
    return OwnTables(
        client,
        config.stream_name,
        StateTable(client, place, names.dead_letters),
        StateTable(client, place, names.handover),
        StateTable(client, place, names.pending),
        config.clickhouse.cluster,
        StateTable(client, place, names.ledger),
    )
