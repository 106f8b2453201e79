"""Bytes to change events."""
