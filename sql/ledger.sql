CREATE TABLE IF NOT EXISTS $table$on_cluster
(
    `stream` String COMMENT 'name of the stream',
    `entry` LowCardinality(String) COMMENT 'kind of entry: claim, intent, execution, progress, release, result, summary, or a fact: truncate_floor, topic, refilled, edited, command',
    `topic_id` String COMMENT 'identity of the topic: a recreated topic has another one',
    `partition` Int32,
    `start_offset` Int64 COMMENT 'first offset of the range',
    `end_offset` Int64 COMMENT 'offset after the last one of the range',
    `batch` UInt64 COMMENT 'the micro-batch of an intent or result, in the order of time',
    `offset` Int64 COMMENT 'refilled, edited: everything below it is in the table',
    `claim_number` UInt64 COMMENT 'the claim under which the entry was written, counted from 1; 0: by a task',
    `fact` String COMMENT 'the fields that have no column of their own, JSON',
    `written` UInt64 COMMENT 'nanoseconds since 1970, rising within a claim',
    `run_id` String COMMENT 'the job that wrote the entry',
    `topic` String,
    `chunk_offsets` Int64 COMMENT 'intent: offsets per chunk with which the range is cut',
    `chunk_bytes` Int64,
    `attempt` UInt32 COMMENT 'intent: how many earlier batches overlap the range; summary: how many it stands for at most',
    `offsets` Array(Int64) COMMENT 'release: offsets of the records that are released together',
    `rows` UInt64 COMMENT 'result: rows inserted into the target',
    `deletes` UInt64,
    `dead_letters` UInt64,
    `counts` Map(String, UInt64) COMMENT 'result: events and records by kind: tombstones, heartbeats, re-delivered, …',
    `state` String COMMENT 'result and progress: state of the partition at the end of the range, JSON',
    `started` DateTime64(3, 'UTC'),
    `finished` DateTime64(3, 'UTC'),
    `source_time` DateTime64(3, 'UTC') COMMENT 'result: source time of the newest event of the range'
)
ENGINE = ${replicated}ReplacingMergeTree(${path}written)
PRIMARY KEY (stream, entry, topic_id, partition, start_offset, end_offset)
ORDER BY (stream, entry, topic_id, partition, start_offset, end_offset, batch, offset, claim_number, fact)
SETTINGS non_replicated_deduplication_window = 1000, replicated_deduplication_window = 1000
COMMENT 'ch_sink: offset ranges that streams intended and finished, and what is known about them'
