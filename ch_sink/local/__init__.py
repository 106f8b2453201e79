"""Engines that run on this machine for the demo and the tests: ClickHouse over chDB, and a local Kafka."""
