"""Which process made a table, and whether it lives."""

import os
import socket

from ch_sink.stream.claims import born

__all__ = ["made_by", "maker"]


def maker() -> str:
    """The process that runs, as `made_by` reads it."""
    pid = os.getpid()
    return f"{socket.gethostname()} {pid} {born(pid)}"


def made_by(text: str) -> int:
    """The process id of another living process of this host; 0 if it is none."""
    parts = text.split()
    if len(parts) != 3 or not parts[1].isdigit() or int(parts[1]) == os.getpid():
        return 0
    return int(parts[1]) if parts[0] == socket.gethostname() and parts[2] == born(int(parts[1])) else 0
