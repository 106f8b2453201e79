CREATE TABLE IF NOT EXISTS $table$on_cluster
(
    `database` String COMMENT 'database of the target table',
    `table` String,
    `column` String,
    `type` String COMMENT 'the source type that the schema of the events declares, as a column comment would state it; empty for none',
    `uuid` UUID COMMENT 'id of that table: a recreated table of the same name has another one',
    `written` UInt64 DEFAULT toUInt64(toUnixTimestamp64Nano(now64(9))) COMMENT 'the newest entry of a column counts'
)
ENGINE = ${replicated}ReplacingMergeTree(${path}written)
ORDER BY (database, table, column)
COMMENT 'ch_sink: source types of columns'
