CREATE ROW POLICY OR REPLACE $policy$on_cluster ON $table USING $condition TO $roles
