"""Inspection of a topic, and the preconditions of its stream: used by ``init`` and ``check``."""
