CREATE OR REPLACE VIEW $view$on_cluster AS
SELECT
$columns,
    least(`__ch_sink_came`.1, ifNull(`valid_to`, `__ch_sink_came`.1)) AS `valid_from`,
    if(`__ch_sink_copy` > length(`__ch_sink_left`), NULL, `__ch_sink_left`[`__ch_sink_copy`]) AS `valid_to`,
    `__ch_sink_came`.2 AS $version,
    `__ch_sink_came`.3 AS `_op`
FROM
(
    SELECT
$inner_columns,
        arraySort(groupArrayIf(($time, $version, `_op`), $sign > 0)) AS `__ch_sink_lives`,
        arraySort(groupArrayIf($time, $sign < 0)) AS `__ch_sink_left`
    FROM $table
    GROUP BY
$inner_columns
)
ARRAY JOIN
    `__ch_sink_lives` AS `__ch_sink_came`,
    arrayEnumerate(`__ch_sink_lives`) AS `__ch_sink_copy`
