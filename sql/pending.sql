CREATE TABLE IF NOT EXISTS $table$on_cluster
(
    `stream` String COMMENT 'name of the stream',
    `topic_id` String COMMENT 'identity of the topic: a recreated topic of the same name has another one',
    `partition` Int32,
    `offset` Int64,
    `timestamp` Int64 COMMENT 'time of the record in Kafka, milliseconds since 1970, -1 for none',
    `key` Nullable(String),
    `value` Nullable(String) CODEC(ZSTD(3)),
    `headers` Array(Tuple(name String, value Nullable(String))),
    `epoch` Int64 COMMENT 'the order that the record was given when it arrived',
    `commit_high` UInt64,
    `commit_low` UInt64,
    `since` Float64 COMMENT 'when it began to wait, seconds since 1970',
    `resolved` UInt8 COMMENT '1: applied or given up; 2: applied, and the value holds the swap of keys that it opened',
    `written` UInt64 DEFAULT toUInt64(toUnixTimestamp64Nano(now64(9))) COMMENT 'the newest entry of an offset counts'
)
ENGINE = ${replicated}ReplacingMergeTree(${path}written)
ORDER BY (stream, topic_id, partition, offset)
COMMENT 'ch_sink: records that wait for the values of another key'
