-- database shop
CREATE DATABASE IF NOT EXISTS `shop`;

-- table orders
CREATE TABLE IF NOT EXISTS `shop`.`orders`
(
    `a` Nullable(Int32),
    `b` Nullable(String),
    `_op` LowCardinality(String) COMMENT 'operation of the change: c insert, u update, d delete, r snapshot',
    `_sign` Int8 COMMENT '1 for a row that a change adds, -1 for one that it removes',
    `_version` UInt128 COMMENT 'order of changes: the highest version of a key is its current row' CODEC(ZSTD(1)),
    `_source_time` DateTime64(3, 'UTC') COMMENT 'time of the change at the source, or of the record in Kafka where the event states none' CODEC(Delta, ZSTD(1))
)
ENGINE = MergeTree
ORDER BY (`_version`)
SETTINGS non_replicated_deduplication_window = 10000
COMMENT 'Kept equal to its source by ch_sink';

-- view orders_current
CREATE OR REPLACE VIEW `shop`.`orders_current` AS
SELECT
    `a`,
    `b`
FROM
(
    SELECT
        `a`,
        `b`,
        sum(`_sign`) AS `__ch_sink_copies`
    FROM `shop`.`orders`
    GROUP BY
        `a`,
        `b`
    HAVING `__ch_sink_copies` > 0
)
ARRAY JOIN range(toUInt64(`__ch_sink_copies`)) AS `__ch_sink_copy`
COMMENT 'Kept by ch_sink, key (), digest c1e6567d';

-- view orders_at_version
CREATE OR REPLACE VIEW `shop`.`orders_at_version` AS
SELECT
    `a`,
    `b`
FROM
(
    SELECT
        `a`,
        `b`,
        sum(`_sign`) AS `__ch_sink_copies`
    FROM `shop`.`orders`
    WHERE `_version` <= bitOr({version:UInt128}, 4294967295)
    GROUP BY
        `a`,
        `b`
    HAVING `__ch_sink_copies` > 0
)
ARRAY JOIN range(toUInt64(`__ch_sink_copies`)) AS `__ch_sink_copy`
COMMENT 'Kept by ch_sink, key (), digest 138976d8';

-- view orders_at
CREATE OR REPLACE VIEW `shop`.`orders_at` AS
SELECT
    `a`,
    `b`
FROM
(
    SELECT
        `a`,
        `b`,
        sum(`_sign`) AS `__ch_sink_copies`
    FROM `shop`.`orders`
    WHERE `_source_time` <= {at:DateTime64(3, 'UTC')}
    GROUP BY
        `a`,
        `b`
    HAVING `__ch_sink_copies` > 0
)
ARRAY JOIN range(toUInt64(`__ch_sink_copies`)) AS `__ch_sink_copy`
COMMENT 'Kept by ch_sink, key (), digest 92a2b5ec';

-- view orders_history
CREATE OR REPLACE VIEW `shop`.`orders_history` AS
SELECT
    `a`,
    `b`,
    least(`__ch_sink_came`.1, ifNull(`valid_to`, `__ch_sink_came`.1)) AS `valid_from`,
    if(`__ch_sink_copy` > length(`__ch_sink_left`), NULL, `__ch_sink_left`[`__ch_sink_copy`]) AS `valid_to`,
    `__ch_sink_came`.2 AS `_version`,
    `__ch_sink_came`.3 AS `_op`
FROM
(
    SELECT
        `a`,
        `b`,
        arraySort(groupArrayIf((`_source_time`, `_version`, `_op`), `_sign` > 0)) AS `__ch_sink_lives`,
        arraySort(groupArrayIf(`_source_time`, `_sign` < 0)) AS `__ch_sink_left`
    FROM `shop`.`orders`
    GROUP BY
        `a`,
        `b`
)
ARRAY JOIN
    `__ch_sink_lives` AS `__ch_sink_came`,
    arrayEnumerate(`__ch_sink_lives`) AS `__ch_sink_copy`
COMMENT 'Kept by ch_sink, key (), digest dce136d5';

-- table ch_sink_ledger
CREATE TABLE IF NOT EXISTS `shop`.`ch_sink_ledger`
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
ENGINE = ReplacingMergeTree(written)
PRIMARY KEY (stream, entry, topic_id, partition, start_offset, end_offset)
ORDER BY (stream, entry, topic_id, partition, start_offset, end_offset, batch, offset, claim_number, fact)
SETTINGS non_replicated_deduplication_window = 1000, replicated_deduplication_window = 1000
COMMENT 'ch_sink: offset ranges that streams intended and finished, and what is known about them';

-- table ch_sink_dead_letters
CREATE TABLE IF NOT EXISTS `shop`.`ch_sink_dead_letters`
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
ENGINE = ReplacingMergeTree(written)
ORDER BY (stream, topic_id, partition, offset)
COMMENT 'ch_sink: records that could not be applied';

-- table ch_sink_handover
CREATE TABLE IF NOT EXISTS `shop`.`ch_sink_handover`
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
ENGINE = ReplacingMergeTree(rank)
ORDER BY (stream, source, commit_high, commit_low, inner_high, inner_low)
TTL time + INTERVAL 90 DAY
COMMENT 'ch_sink: values of rows that change their key';

-- table ch_sink_pending
CREATE TABLE IF NOT EXISTS `shop`.`ch_sink_pending`
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
ENGINE = ReplacingMergeTree(written)
ORDER BY (stream, topic_id, partition, offset)
COMMENT 'ch_sink: records that wait for the values of another key';

-- table ch_sink_columns
CREATE TABLE IF NOT EXISTS `shop`.`ch_sink_columns`
(
    `database` String COMMENT 'database of the target table',
    `table` String,
    `column` String,
    `type` String COMMENT 'the source type that the schema of the events declares, as a column comment would state it; empty for none',
    `uuid` UUID COMMENT 'id of that table: a recreated table of the same name has another one',
    `written` UInt64 DEFAULT toUInt64(toUnixTimestamp64Nano(now64(9))) COMMENT 'the newest entry of a column counts'
)
ENGINE = ReplacingMergeTree(written)
ORDER BY (database, table, column)
COMMENT 'ch_sink: source types of columns';

-- column types orders
INSERT INTO `shop`.`ch_sink_columns` (`database`, `table`, `column`, `type`, `uuid`)
SELECT made.database, made.name, noted.column, noted.type, made.uuid
FROM values('column String, type String',
    ('a', 'int32'),
    ('b', 'string')) AS noted, system.tables AS made
WHERE made.database = 'shop' AND made.name = 'orders';
