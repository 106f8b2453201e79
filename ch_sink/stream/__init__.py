"""One stream from topic to table across batches: states, claims, offset ranges. No Spark, no HTTP."""
