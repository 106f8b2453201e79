"""JSON change events, enveloped or flattened: payloads of one shape to columns."""
