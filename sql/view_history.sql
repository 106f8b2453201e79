CREATE OR REPLACE VIEW $view$on_cluster AS
SELECT
$columns,
    `valid_from`,
    `valid_to`,
    $version,
    `_op`
FROM
(
    SELECT
$inner_columns,
        $version,
        `_op`,
        $sign,
        min($time) OVER (PARTITION BY $key ORDER BY $version ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS `valid_from`,
        min(toNullable($time)) OVER (PARTITION BY $key ORDER BY $version ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING) AS `valid_to`
    FROM $table
)
WHERE $sign > 0
