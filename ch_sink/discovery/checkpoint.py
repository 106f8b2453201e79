"""Whether Spark can keep its checkpoint where the configuration says."""

import tempfile
from pathlib import Path

from ch_sink.errors import ConfigError

__all__ = ["expect_checkpoint"]


def expect_checkpoint(checkpoint: str) -> None:
    """Try whether folders can be made there. A URL is not looked at: only Spark reaches such file systems.

    Permission bits say too little: root passes them all, and some file systems hold no folders.

    Raises ConfigError.
    """
    if "://" in checkpoint:
        return
    folder = Path(checkpoint).absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir():
        raise ConfigError(f"checkpoint {folder}: {existing} is not a folder", hint="Set checkpoint to another folder.")
    try:
        tempfile.TemporaryDirectory(prefix=".ch_sink-", dir=existing).cleanup()
    except OSError as error:
        raise ConfigError(
            f"checkpoint {folder} cannot be written: {error.strerror or error}",
            hint=f"Make {existing} writable, or set checkpoint to another folder.",
        ) from error
