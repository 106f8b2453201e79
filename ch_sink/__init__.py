"""ch_sink: Debezium change events from Kafka into ClickHouse tables that equal their source."""

__version__ = "0.1.0"

__all__ = ["__version__"]
