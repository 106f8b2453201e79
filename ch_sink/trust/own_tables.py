"""The sink's own tables of one stream, as the commands on single keys need them."""

from dataclasses import dataclass

from ch_sink.clickhouse import Client
from ch_sink.clickhouse.state_table import StateTable
from ch_sink.config import Config
from ch_sink.trust.judge import Noted

__all__ = ["OwnTables", "own_tables"]


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
            f"SELECT partition, offset, kind, reason, {outcome} = 'dropped' AS dropped FROM $table FINAL "
            f"WHERE {mine} AND (retried IS NULL OR dropped)",
            **named,
        )
        reasons = {
            (int(r["partition"]), int(r["offset"])): (f"{r['kind']}: {r['reason']}", bool(r["dropped"]))
            for r in letters
        }
        waiting = self.pending.rows(
            f"SELECT partition, offset FROM $table FINAL WHERE {mine} AND resolved = 0", **named
        )
        return Noted(
            applied,
            {place: why for place, (why, dropped) in reasons.items() if not dropped},
            frozenset((int(r["partition"]), int(r["offset"])) for r in waiting),
            dropped={place: why for place, (why, dropped) in reasons.items() if dropped},
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
