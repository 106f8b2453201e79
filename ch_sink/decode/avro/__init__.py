"""Avro: schemas, change events and keys as columns."""
