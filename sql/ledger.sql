CREATE TABLE IF NOT EXISTS $table$on_cluster
(
    `stream` String COMMENT 'name of the stream',
    `entry` LowCardinality(String) COMMENT 'claim: a job took the stream; intent: a range about to be read; result: a range done; cut: where a chunk ended for want of columns; note: anything else',
    `topic_id` String COMMENT 'identity of the topic, so that a topic made anew is told from the old one',
    `partition` Int32,
    `start_offset` Int64 COMMENT 'first offset of the range; claim: its number',
    `end_offset` Int64 COMMENT 'offset after the last one of the range',
    `batch` UInt64 COMMENT 'the micro-batch, in the order of time; claim: its number',
    `written` UInt64 COMMENT 'order of entries: nanoseconds since 1970, always rising within a stream',
    `run_id` String COMMENT 'the job that wrote the entry',
    `topic` String,
    `chunk_offsets` Int64 COMMENT 'offsets per chunk with which the range was cut',
    `chunk_bytes` Int64,
    `cuts` Array(Int64) COMMENT 'offsets at which the range was cut into chunks',
    `rows` UInt64 COMMENT 'rows inserted into the target',
    `deletes` UInt64,
    `dead_letters` UInt64,
    `counts` Map(String, UInt64) COMMENT 'events and records by kind: tombstones, heartbeats, re-delivered, …',
    `state` String COMMENT 'state of the partition at the end of the range, JSON',
    `details` String COMMENT 'claim: who holds it; note: its text; JSON',
    `started` DateTime64(3, 'UTC'),
    `finished` DateTime64(3, 'UTC'),
    `source_time` DateTime64(3, 'UTC') COMMENT 'source time of the newest event of the range'
)
ENGINE = ${replicated}ReplacingMergeTree(${path}written)
ORDER BY (stream, entry, topic_id, partition, start_offset, end_offset, batch)
SETTINGS non_replicated_deduplication_window = 1000, replicated_deduplication_window = 1000
COMMENT 'ch_sink: offset ranges that streams intended and finished'
