"""Engines that the sink does not write to: why, and what to do instead."""

from ch_sink.errors import TableError

__all__ = ["refusal"]

_LOCAL = "Point clickhouse.table at a table of the ReplacingMergeTree family, or let `ch_sink init` make one."
_SUMS = (
    "it merges rows of one key by adding them up, so an update or a delete cannot replace what is stored",
    "Write into a ReplacingMergeTree table and feed this one from it by a materialized view.",
)
_SET = ("it holds its rows in memory for joins and cannot replace or delete them", _LOCAL)
_LOG = ("it only appends: no keys, no deduplication of inserts, no versions", _LOCAL)
_OUTSIDE = ("its rows live in another system, where neither versions nor deduplication tokens hold", _LOCAL)
_LAKE = ("it is a table of a data lake, where neither versions nor deduplication tokens hold", _LOCAL)

_REASONS: dict[str, tuple[str, str]] = {
    "View": ("a view stores nothing", "Point clickhouse.table at the table that the view reads."),
    "LiveView": ("a view stores nothing", "Point clickhouse.table at the table that the view reads."),
    "WindowView": ("a view stores nothing", "Point clickhouse.table at the table that the view reads."),
    "MaterializedView": (
        "rows inserted into a materialized view bypass its query and its source table",
        "Point clickhouse.table at its source table, or at its target table (TO …) itself.",
    ),
    "Buffer": (
        "it acknowledges rows that it holds in memory only, and drops deduplication tokens when it flushes",
        "Point clickhouse.table at the table behind the buffer.",
    ),
    "Null": (
        "it stores nothing, so rows could be neither replaced nor looked up",
        "Point clickhouse.table at the table that its materialized views fill.",
    ),
    "Memory": ("its rows are gone when the server restarts, and it knows neither versions nor deduplication", _LOCAL),
    "Kafka": ("it is a reader of a topic", "Point clickhouse.table at the table that holds the rows."),
    "Merge": ("it reads over several tables and stores nothing", "Point clickhouse.table at one of them."),
    "Dictionary": ("it shows a dictionary and cannot be inserted into", _LOCAL),
    "Alias": ("it is another name of a table", "Point clickhouse.table at the table that it names."),
    "KeeperMap": ("it is a small key-value store in Keeper, meant for state", _LOCAL),
    "EmbeddedRocksDB": ("it overwrites by key without versions, so a late or repeated event would win", _LOCAL),
    "Redis": ("it overwrites by key without versions, so a late or repeated event would win", _LOCAL),
    "TimeSeries": ("it stores Prometheus samples in tables of its own", _LOCAL),
    "GenerateRandom": ("it makes up rows and stores none", _LOCAL),
    "FuzzJSON": ("it makes up rows and stores none", _LOCAL),
    "FuzzQuery": ("it makes up rows and stores none", _LOCAL),
    "Loop": ("it repeats another table's rows and stores none", _LOCAL),
    "ReplicatedGraphiteMergeTree": _SUMS,
    "GraphiteMergeTree": _SUMS,
    "Join": _SET,
    "Set": _SET,
    "Log": _LOG,
    "TinyLog": _LOG,
    "StripeLog": _LOG,
    "CoalescingMergeTree": (
        "an update to null leaves the old value there, and a row inserted again after a delete looks like an update",
        "Use a ReplacingMergeTree (`ch_sink init`).",
    ),
    **dict.fromkeys(("SummingMergeTree", "AggregatingMergeTree"), _SUMS),
    **dict.fromkeys(("DeltaLake", "DeltaLakeS3", "DeltaLakeAzure", "DeltaLakeLocal"), _LAKE),
    **dict.fromkeys(("Iceberg", "IcebergS3", "IcebergAzure", "IcebergHDFS", "IcebergLocal", "Hudi"), _LAKE),
    **dict.fromkeys(("MySQL", "PostgreSQL", "MaterializedPostgreSQL", "MaterializedMySQL", "MongoDB"), _OUTSIDE),
    **dict.fromkeys(("SQLite", "ODBC", "JDBC", "ExternalDistributed", "YTsaurus", "ArrowFlight"), _OUTSIDE),
    **dict.fromkeys(("File", "FileLog", "URL", "S3", "S3Queue", "GCS", "COSN", "OSS"), _OUTSIDE),
    **dict.fromkeys(("AzureBlobStorage", "AzureQueue", "HDFS", "Hive", "Executable", "ExecutablePool"), _OUTSIDE),
    **dict.fromkeys(("RabbitMQ", "NATS"), _OUTSIDE),
}


def refusal(engine: str, table: str) -> TableError:
    """The error for an engine outside the served families: it names the engine, the reason and the remedy."""
    base = engine.removeprefix("Replicated").removeprefix("Shared").removeprefix("System")
    if engine.startswith("System"):
        reason, remedy = "it is one of the server's own tables", _LOCAL
    else:
        reason, remedy = _REASONS.get(base, ("the sink does not know how it merges rows", _LOCAL))
    return TableError(f"{table} has the engine {engine}, which cannot be served: {reason}", hint=remedy)
