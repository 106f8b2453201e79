"""What a topic looks like and whether a stream can run: used by ``init`` and ``check``."""
