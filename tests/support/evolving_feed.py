"""A source whose columns change, read into the table that ``init`` made when there was its first event only."""

from ch_sink.clickhouse import Client
from ch_sink.model.policy import Policy, policy_of
from tests.support.evolving import EvolvingSource
from tests.support.stream import Feed, make_table

POLICY = policy_of(evolve="add_columns", on_bad_record="fail")


def hand_fed(client: Client, database: str, source: EvolvingSource, policy: Policy = POLICY, **spec: object) -> Feed:
    """A hand-written source into the table that ``init`` made when there was its first event only."""
    target = make_table(client, database, "t", source.declared(), policy=policy, **spec)  # type: ignore[arg-type]
    return Feed(client, database, target, f"{database}/hand", "evolving", policy, source.records())


def shown(client: Client, database: str, columns: str = "*") -> list[tuple[object, ...]]:
    return [tuple(r.values()) for r in client.rows(f"SELECT {columns} FROM {database}.t_current ORDER BY id")]


def types_of(feed: Feed) -> dict[str, str]:
    return {c.name: c.type for c in feed.target.table.columns if not c.name.startswith("_")}
