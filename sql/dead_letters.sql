CREATE TABLE IF NOT EXISTS $table$on_cluster
(
    `stream` String COMMENT 'name of the stream',
    `topic` String,
    `topic_id` String COMMENT 'identity of the topic: a recreated topic of the same name has another one',
    `partition` Int32,
    `offset` Int64,
    `timestamp` Int64 COMMENT 'time of the record in Kafka, milliseconds since 1970, -1 for none',
    `key` Nullable(String) CODEC(ZSTD(3)),
    `value` Nullable(String) CODEC(ZSTD(3)),
    `headers` Array(Tuple(name String, value Nullable(String))),
    `kind` LowCardinality(String) COMMENT 'family of the failure: decode, position, range, unresolved, …',
    `column` Nullable(String) COMMENT 'the column at fault, if any',
    `reason` String,
    `time` DateTime64(3, 'UTC') DEFAULT now64(3) COMMENT 'when the record failed',
    `retried` Nullable(DateTime64(3, 'UTC')) COMMENT 'when it was settled, null: not so far',
    `outcome` LowCardinality(String) COMMENT 'how it was settled: applied, superseded by a newer change, waiting for another row, or dropped',
    `written` UInt64 DEFAULT toUInt64(toUnixTimestamp64Nano(now64(9))) COMMENT 'the newest entry of an offset counts'
)
ENGINE = ${replicated}ReplacingMergeTree(${path}written)
ORDER BY (stream, topic_id, partition, offset)
COMMENT 'ch_sink: records that could not be applied'
