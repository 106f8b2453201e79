"""Kafka: offset ranges, the consumer of a range, watermarks, group offsets."""
