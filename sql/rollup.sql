$create $rollup
(
$columns
)
ENGINE = AggregatingMergeTree
ORDER BY ($order)
SETTINGS $settings
COMMENT $comment
$filling
