$create $rollup$on_cluster
(
$columns
)
ENGINE = AggregatingMergeTree
ORDER BY ($order)
SETTINGS $settings
COMMENT $comment
$filling
