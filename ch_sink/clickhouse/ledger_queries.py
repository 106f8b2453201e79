"""Queries of the ledger's table. ``$table`` is its name."""

__all__ = [
    "ATTEMPTS",
    "CUTS",
    "FACTS",
    "FOLDABLE",
    "HISTORY",
    "INTENDED",
    "INTENTS_WITHIN",
    "KEPT_FROM",
    "LAST_EXECUTION",
    "LAST_INTENTS",
    "LAST_RELEASE",
    "LAST_SCHEMA_CHANGE",
    "LAST_STATES",
    "NEWEST_CLAIM",
    "NEWEST_CLAIMS",
    "OPEN_INTENTS",
    "PROGRESS",
    "PROGRESS_OF",
    "RESULTS_BY_PLACE",
    "STATES_AT",
    "STATES_OVER",
    "STATE_BEFORE",
    "SUMMARIES",
    "SWEEP",
    "SWEEP_CLAIMS",
    "SWEEP_SUMMARIES",
    "TOPIC_IDS",
    "TOTALS",
]

_MINE = "stream = {stream:String}"
# By claim first, since the clocks of two jobs may differ. One number is compared much faster than a tuple.
_ORDER = "bitOr(bitShiftLeft(toUInt128(claim_number), 64), toUInt128(written))"
_PARTITION = "topic_id = {topic_id:String} AND partition = {partition:Int32}"

# Served by the primary key (stream, entry): reads the claims of this stream and nothing else.
NEWEST_CLAIM = f"""\
SELECT claim_number, run_id, fact, written FROM $table
WHERE {_MINE} AND entry = 'claim'
ORDER BY claim_number DESC, written DESC LIMIT 1"""

NEWEST_CLAIMS = """\
SELECT stream, claim_number, run_id, fact, written FROM $table
WHERE stream IN {streams:Array(String)} AND entry = 'claim'
ORDER BY claim_number DESC, written DESC LIMIT 1 BY stream"""

ATTEMPTS = f"""\
SELECT topic_id, partition, first, last, uniqExact(batch) AS n, groupUniqArray(fact) AS facts
FROM (SELECT topic_id, partition, start_offset, end_offset, batch, fact FROM $table
    WHERE {_MINE} AND entry = 'intent') AS intents
INNER JOIN (SELECT span.1 AS topic_id, span.2 AS partition, span.3 AS first, span.4 AS last
    FROM (SELECT arrayJoin({{spans:Array(Tuple(String, Int32, Int64, Int64))}}) AS span)) AS wanted
USING (topic_id, partition)
WHERE start_offset < last AND end_offset > first
GROUP BY topic_id, partition, first, last"""

INTENDED = f"""\
SELECT topic_id, partition, max(end_offset) AS reached FROM $table
WHERE {_MINE} AND entry = 'intent' GROUP BY topic_id, partition"""

STATES_AT = f"""\
SELECT partition, argMax(state, {_ORDER}) AS state FROM $table
WHERE {_MINE} AND entry IN ('result', 'summary') AND topic_id = {{topic_id:String}}
    AND (partition, end_offset) IN {{places:Array(Tuple(Int32, Int64))}}
GROUP BY partition"""

STATE_BEFORE = f"""\
SELECT end_offset, state FROM $table
WHERE {_MINE} AND entry IN ('result', 'summary') AND {_PARTITION} AND end_offset <= {{offset:Int64}}
ORDER BY end_offset DESC, {_ORDER} DESC LIMIT 1"""

STATES_OVER = f"""\
SELECT start_offset, end_offset, state FROM $table
WHERE {_MINE} AND entry IN ('result', 'summary') AND {_PARTITION}
AND start_offset < least(end_offset, {{end:Int64}}) AND end_offset > {{first:Int64}}
ORDER BY start_offset, end_offset, {_ORDER}"""

# A result that is empty says where reading goes on after offsets were lost, and where it begins.
PROGRESS = f"""\
SELECT partition, argMax(end_offset, {_ORDER}) AS next_offset FROM $table
WHERE {_MINE} AND entry = 'result' AND topic_id = {{topic_id:String}}
GROUP BY partition"""

OPEN_INTENTS = f"""\
SELECT
    topic, {{topic_id:String}} AS topic_id, partition,
    if(finished > intended, reached, start) AS start_offset,
    end AS end_offset, chunk_offsets, chunk_bytes, 0 AS attempt
FROM
(
    SELECT
        partition,
        maxIf({_ORDER}, entry = 'intent') AS intended,
        argMaxIf(topic, {_ORDER}, entry = 'intent') AS topic,
        argMaxIf(start_offset, {_ORDER}, entry = 'intent') AS start,
        argMaxIf(end_offset, {_ORDER}, entry = 'intent') AS end,
        argMaxIf(chunk_offsets, {_ORDER}, entry = 'intent') AS chunk_offsets,
        argMaxIf(chunk_bytes, {_ORDER}, entry = 'intent') AS chunk_bytes,
        maxIf({_ORDER}, entry = 'result') AS finished,
        argMaxIf(end_offset, {_ORDER}, entry = 'result') AS reached
    FROM $table
    WHERE {_MINE} AND entry IN ('intent', 'result') AND topic_id = {{topic_id:String}}
    GROUP BY partition
)
WHERE intended > 0 AND start <= start_offset AND start_offset < end
ORDER BY partition"""

TOPIC_IDS = f"""\
SELECT topic_id FROM $table WHERE {_MINE} AND entry IN ('intent', 'result')
GROUP BY topic_id ORDER BY max({_ORDER}) DESC"""

LAST_INTENTS = f"""\
SELECT topic, topic_id, partition, start_offset, end_offset, chunk_offsets, chunk_bytes, attempt
FROM $table FINAL
WHERE {_MINE} AND entry = 'intent'
    AND batch = (SELECT argMax(batch, {_ORDER}) FROM $table WHERE {_MINE} AND entry = 'intent')
ORDER BY topic_id, partition, start_offset"""

# Find the newest results by narrow columns, then read the states and counts of these only.
HISTORY = f"""\
SELECT
    topic, topic_id, partition, start_offset, end_offset, rows, deletes, dead_letters, counts, cuts, state, run_id,
    batch, fact,
    toUnixTimestamp64Milli(started) AS started_ms,
    toUnixTimestamp64Milli(finished) AS finished_ms,
    toUnixTimestamp64Milli(source_time) AS source_time_ms
FROM $table FINAL
WHERE {_MINE} AND entry = 'result' AND (topic_id, partition, start_offset, end_offset, batch) IN
(
    SELECT topic_id, partition, start_offset, end_offset, batch FROM $table
    WHERE {_MINE} AND entry = 'result'
    ORDER BY {_ORDER} DESC LIMIT {{limit:UInt64}}
)
ORDER BY {_ORDER} DESC, topic_id, partition LIMIT {{limit:UInt64}}"""

# If a range was run more than once, all results but the last are excluded. They are few, so this is faster than picking
# the last result of each range. What summaries contain is counted there.
TOTALS = f"""\
WITH NOT arrayExists(
    c -> c.1 = topic_id AND c.2 = partition AND c.3 <= start_offset AND end_offset <= c.4,
    {{covered:Array(Tuple(String, Int32, Int64, Int64))}}) AS counted
SELECT
    topic_id, partition,
    any(topic) AS topic,
    argMax(start_offset, {_ORDER}) AS last_start,
    max(end_offset) AS next_offset,
    sumIf(rows, counted) AS rows,
    sumIf(deletes, counted) AS deletes,
    sumIf(dead_letters, counted) AS dead_letters,
    sumMapIf(counts, counted) AS counts,
    toUnixTimestamp64Milli(max(finished)) AS finished_ms,
    toUnixTimestamp64Milli(max(source_time)) AS source_time_ms
FROM $table
WHERE {_MINE} AND entry = 'result' AND (topic_id, partition, start_offset, end_offset, written) NOT IN
(
    SELECT topic_id, partition, start_offset, end_offset, written FROM $table
    WHERE {_MINE} AND entry = 'result'
    ORDER BY topic_id, partition, start_offset, end_offset, {_ORDER} DESC
    LIMIT 1, 4294967295 BY topic_id, partition, start_offset, end_offset
)
GROUP BY topic_id, partition
ORDER BY topic_id, partition"""

# The states of the ranges that begin at `last_start` of TOTALS, by the primary key: states are long, results many.
LAST_STATES = f"""\
SELECT topic_id, partition, argMax(state, {_ORDER}) AS state FROM $table
WHERE {_MINE} AND entry = 'result'
    AND (topic_id, partition, start_offset) IN {{ranges:Array(Tuple(String, Int32, Int64))}}
GROUP BY topic_id, partition"""

# Served by the primary key. The engine keeps one row for each partition, and `written` is the execution's rank.
LAST_EXECUTION = f"""\
SELECT written, run_id, state FROM $table
WHERE {_MINE} AND entry = 'execution' AND {_PARTITION}
ORDER BY written DESC, run_id DESC LIMIT 1"""

# Progress under the claim and batch of the last result of the same range, or under an earlier one, is void; likewise if
# a summary of the range was written after its batch began. A batch's number is a time of the owner's clock; the clocks
# of tasks are not looked at.
PROGRESS_OF = f"""\
WITH (SELECT max((claim_number, batch)) FROM $table
    WHERE {_MINE} AND entry = 'result' AND {_PARTITION} AND start_offset = {{start:Int64}}) AS last,
    (SELECT max((claim_number, written)) FROM $table
    WHERE {_MINE} AND entry = 'summary' AND {_PARTITION}
        AND start_offset <= {{start:Int64}} AND end_offset > {{start:Int64}}) AS folded
SELECT end_offset, state FROM $table
WHERE {_MINE} AND entry = 'progress' AND {_PARTITION} AND start_offset = {{start:Int64}}
    AND (claim_number, batch) > greatest(last, folded)
ORDER BY end_offset DESC LIMIT 1"""

# Each group replaces the one before it.
LAST_RELEASE = f"""\
SELECT cuts, counts['given_up'] AS given_up, written FROM $table
WHERE {_MINE} AND entry = 'release' AND {_PARTITION} ORDER BY written DESC LIMIT 1"""

CUTS = f"""\
SELECT partition, groupUniqArray(offset) AS offsets FROM $table
WHERE {_MINE} AND entry = 'cut' AND topic_id = {{topic_id:String}} GROUP BY partition"""

FACTS = f"""\
SELECT topic_id, partition, offset, fact FROM $table FINAL
WHERE {_MINE} AND entry = {{kind:String}} ORDER BY {_ORDER}"""

LAST_SCHEMA_CHANGE = f"""\
SELECT entry, fact FROM $table
WHERE {_MINE} AND entry IN ('schema_change_begun', 'schema_change_finished')
ORDER BY {_ORDER} DESC LIMIT 1"""

_FIGURES = """\
    topic, topic_id, partition, start_offset, end_offset, rows, deletes, dead_letters, counts, state,
    toUnixTimestamp64Milli(started) AS started_ms,
    toUnixTimestamp64Milli(finished) AS finished_ms,
    toUnixTimestamp64Milli(source_time) AS source_time_ms,
    claim_number, written, run_id, batch"""

# A few for each partition, however long the stream has run.
SUMMARIES = f"""\
SELECT attempt AS batches,
{_FIGURES}
FROM $table FINAL
WHERE {_MINE} AND entry = 'summary' ORDER BY topic_id, partition, start_offset, end_offset"""

RESULTS_BY_PLACE = f"""\
SELECT topic_id, partition, count() AS n FROM $table
WHERE {_MINE} AND entry = 'result' GROUP BY topic_id, partition ORDER BY topic_id, partition"""

# The oldest results of a partition that may be folded: all but the newest ones, and none that summaries contain.
FOLDABLE = f"""\
SELECT cuts,
{_FIGURES}
FROM $table FINAL
WHERE {_MINE} AND entry = 'result' AND {_PARTITION}
    AND {_ORDER} <= (SELECT {_ORDER} FROM $table
        WHERE {_MINE} AND entry = 'result' AND {_PARTITION}
        ORDER BY {_ORDER} DESC LIMIT 1 OFFSET {{keep:UInt64}})
    AND ((claim_number, written) > {{since:Tuple(UInt64, UInt64)}}
        OR NOT arrayExists(c -> c.1 <= start_offset AND end_offset <= c.2, {{covered:Array(Tuple(Int64, Int64))}}))
ORDER BY {_ORDER} LIMIT {{limit:UInt64}}"""

# The newest result that need not be kept.
KEPT_FROM = f"""\
SELECT claim_number, written FROM $table
WHERE {_MINE} AND entry = 'result' AND {_PARTITION}
ORDER BY {_ORDER} DESC LIMIT 1 OFFSET {{keep:UInt64}}"""

INTENTS_WITHIN = f"""\
SELECT start_offset, end_offset FROM $table
WHERE {_MINE} AND entry = 'intent' AND {_PARTITION}
    AND start_offset >= {{start:Int64}} AND end_offset <= {{end:Int64}}"""

# A rerun's entries are newer than the summary that contains them, and stay.
SWEEP = f"""\
DELETE FROM $table
WHERE {_MINE} AND entry IN {{entries:Array(String)}} AND arrayExists(
    c -> c.1 = topic_id AND c.2 = partition AND c.3 <= start_offset AND end_offset <= c.4
        AND (claim_number, if(entry = 'progress', batch, written)) <= (c.5, c.6),
    {{covered:Array(Tuple(String, Int32, Int64, Int64, UInt64, UInt64))}})"""

SWEEP_SUMMARIES = f"""\
DELETE FROM $table
WHERE {_MINE} AND entry = 'summary' AND (topic_id, partition, start_offset, end_offset, claim_number, written)
    IN {{void:Array(Tuple(String, Int32, Int64, Int64, UInt64, UInt64))}}"""

SWEEP_CLAIMS = f"""\
DELETE FROM $table
WHERE {_MINE} AND entry = 'claim' AND claim_number < {{claim_number:UInt64}}"""
