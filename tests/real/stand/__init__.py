"""Databases, Kafka Connect and a schema registry as processes of this machine, each in a folder of its own."""
