from tests.support.endpoint import clickhouse, client, database, own_tables, stream

__all__ = ["clickhouse", "client", "database", "own_tables", "stream"]
