CREATE OR REPLACE VIEW $view$on_cluster AS
SELECT
$columns,
    least(`_came`.1, ifNull(`valid_to`, `_came`.1)) AS `valid_from`,
    if(`_copy` > length(`_left`), NULL, `_left`[`_copy`]) AS `valid_to`,
    `_came`.2 AS $version,
    `_came`.3 AS `_op`
FROM
(
    SELECT
$inner_columns,
        arraySort(groupArrayIf(($time, $version, `_op`), $sign > 0)) AS `_lives`,
        arraySort(groupArrayIf($time, $sign < 0)) AS `_left`
    FROM $table
    GROUP BY
$inner_columns
)
ARRAY JOIN
    `_lives` AS `_came`,
    arrayEnumerate(`_lives`) AS `_copy`
