"""Column types: one small module per family of logical types."""
