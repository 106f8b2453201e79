"""In-memory implementations of the ports, for tests of pipelines without Kafka, Spark or ClickHouse."""
