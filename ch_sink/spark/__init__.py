"""Spark: the session, the streaming source of offset ranges, the job."""
