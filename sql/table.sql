CREATE TABLE IF NOT EXISTS $table$on_cluster
(
$columns
)
ENGINE = $engine
$clauses
COMMENT $comment
