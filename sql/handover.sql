CREATE TABLE IF NOT EXISTS $table$on_cluster
(
    `stream` String COMMENT 'name of the stream',
    `source` String COMMENT 'source.name of the events',
    `commit_high` UInt64,
    `commit_low` UInt64 COMMENT 'commit position of the key change',
    `inner_high` UInt64,
    `inner_low` UInt64 COMMENT 'position of the change inside its transaction',
    `known` UInt8 COMMENT '0: the delete half was seen, but its row was not found',
    `row` String COMMENT 'the row before its key changed, an Arrow IPC stream' CODEC(ZSTD(3)),
    `time` DateTime DEFAULT now(),
    `rank` UInt64 DEFAULT 18446744073709551615 - toUInt64(toUnixTimestamp64Nano(now64(9))) COMMENT 'falls with time: the first entry stays'
)
ENGINE = ${replicated}ReplacingMergeTree(${path}rank)
ORDER BY (stream, source, commit_high, commit_low, inner_high, inner_low)
TTL time + INTERVAL 90 DAY
COMMENT 'ch_sink: values of rows that change their key'
