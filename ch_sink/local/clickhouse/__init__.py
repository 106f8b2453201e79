"""ClickHouse's HTTP interface over the embedded chDB engine."""
