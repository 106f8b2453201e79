"""The folder in which what was fetched or prepared once is kept."""

import os
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder() -> Path:
    """``$CH_SINK_CACHE``, else ``ch_sink`` in the user's cache folder."""
    own = os.environ.get("CH_SINK_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ch_sink"
