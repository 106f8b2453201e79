"""JSON change events: payloads of one shape to columns."""
