"""File descriptors of a job of many streams."""

import resource

from ch_sink.errors import ConfigError

__all__ = ["allow_descriptors"]

_BASE = 300
"""Spark's own, and those of a process without streams."""
_PER_STREAM = 1
"""Streams share their clients in the driver; one to spare for each."""


def allow_descriptors(streams: int) -> None:
    """Raise the process's own limit as far as the system allows. Raises ConfigError if that is too low."""
    needed = _BASE + _PER_STREAM * streams
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and (soft < hard or hard == resource.RLIM_INFINITY):
        wanted = needed * 4 if hard == resource.RLIM_INFINITY else hard
        if wanted > soft:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    if resource.RLIM_INFINITY != soft < needed:
        raise ConfigError(
            f"{streams} streams need some {needed} open files, and this process may have {soft}",
            hint=f"Raise the limit (`ulimit -n {needed}`, LimitNOFILE in systemd), or split the streams over jobs.",
        )
