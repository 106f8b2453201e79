"""Documents: Extended JSON to BSON values, updates that state only what changed, and both into columns."""
