CREATE OR REPLACE VIEW $view AS
SELECT
$shown
FROM
(
    SELECT
$inner
    FROM $rollup
    GROUP BY $keys
)
WHERE $rows != 0
