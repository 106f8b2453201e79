"""The busy streams: overlapping transactions, repeated stretches, key changes with placeholders over partitions."""

from ch_sink.clickhouse import Client
from ch_sink.model.policy import policy_of
from ch_sink.table.rollup import RollupChoice
from tests.support.fixtures import partitions, topic_of
from tests.support.stream import Feed, make_table, schema_of

POLICY = policy_of(on_bad_record="fail")


ENGINES = ("replacing", "sign-replacing", "collapsing", "versioned-collapsing")


def feed_of(
    client: Client,
    database: str,
    source: str,
    table: str,
    engine: str,
    *,
    first: int | None = None,
    rollups: tuple[RollupChoice, ...] = (),
    **spec: object,
) -> Feed:
    """``first``: take so many records of each partition only, for what compares a table with itself."""
    stream = f"{source}-busy-json_plain"
    schema = schema_of(stream, table, keep=decimal_and_time(table))
    target = make_table(client, database, table, schema, engine=engine, policy=POLICY, **spec)
    topic = topic_of(stream, table)
    records = None
    if first is not None:
        records = {p: whole.slice(0, first) for p, whole in partitions(stream, topic).items()}
    return Feed(client, database, target, stream, topic, POLICY, records, rollups=rollups)


def decimal_and_time(table: str) -> dict[str, tuple[str, str, dict[str, str]]]:
    """Plain JSON carries no types: what the source's columns are, as Debezium's schema would state them."""
    if table != "acct":
        return {}
    price = {"scale": "4", "connect.decimal.precision": "20"}
    return {
        "price": ("bytes", "org.apache.kafka.connect.data.Decimal", price),
        "updated": ("int64", "io.debezium.time.MicroTimestamp", {}),
    }
