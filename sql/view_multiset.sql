CREATE OR REPLACE VIEW $view$on_cluster AS
SELECT
$columns
FROM
(
    SELECT
$inner_columns,
        sum($sign) AS `__ch_sink_copies`
    FROM $table
    $moment
    GROUP BY
$inner_columns
    HAVING `__ch_sink_copies` > 0
)
ARRAY JOIN range(toUInt64(`__ch_sink_copies`)) AS `__ch_sink_copy`
