"""Whether a table equals its source, and how it is made so: shadow tables, their comparison, repair."""
