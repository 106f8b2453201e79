CREATE ROW POLICY IF NOT EXISTS $policy$on_cluster ON $table USING $condition TO $roles
