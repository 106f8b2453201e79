CREATE OR REPLACE VIEW $view$on_cluster AS
SELECT
$columns
FROM $table FINAL
$clauses
