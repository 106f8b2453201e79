CREATE DATABASE IF NOT EXISTS $database$on_cluster
