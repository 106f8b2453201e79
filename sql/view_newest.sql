CREATE OR REPLACE VIEW $view$on_cluster AS
SELECT
$columns
FROM
(
    SELECT
$inner_columns,
        $sign
    FROM $table
    $moment
    ORDER BY $key, $version DESC
    LIMIT 1 BY $key
)
WHERE $sign > 0
