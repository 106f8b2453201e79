from tests.support.endpoint import clickhouse, client, database

__all__ = ["clickhouse", "client", "database"]
