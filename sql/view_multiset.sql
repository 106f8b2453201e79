CREATE OR REPLACE VIEW $view$on_cluster AS
SELECT
$columns
FROM
(
    SELECT
$inner_columns,
        sum($sign) AS `_copies`
    FROM $table
    $moment
    GROUP BY
$inner_columns
    HAVING `_copies` > 0
)
ARRAY JOIN range(toUInt64(`_copies`)) AS `_copy`
