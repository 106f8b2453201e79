"""A Kafka on this machine: a real broker, or librdkafka's mock cluster."""
