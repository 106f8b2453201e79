"""Finds a Java runtime: JAVA_HOME, then PATH, then the folders where packages and installers put one."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ch_sink.errors import ConfigError

__all__ = ["MINIMUM", "find_java", "java_version", "require_java"]

MINIMUM = 17
"""Lowest major version that Spark 4.2 and Kafka 4.2 accept."""

_FOLDERS = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/jdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*",
    "/usr/local/opt/openjdk*",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
)


def find_java() -> Path | None:
    """Path of a ``java`` executable of version 17 or newer, None when this machine has none."""
    for java in _candidates():
        version = java_version(java)
        if version is not None and version >= MINIMUM:
            return java
    return None


def require_java() -> Path:
    """Path of a ``java`` executable of version 17 or newer. Raises ConfigError when this machine has none."""
    java = find_java()
    if java is None:
        raise ConfigError(
            f"Spark needs Java {MINIMUM} or newer, and none was found by JAVA_HOME, PATH or in the usual folders",
            hint="Install a Java runtime (Debian, Ubuntu: openjdk-17-jre-headless) or set JAVA_HOME.",
        )
    return java


def _candidates() -> Iterator[Path]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java"
    on_path = shutil.which("java")
    if on_path:
        yield Path(on_path)
    for pattern in _FOLDERS:
        folder = Path(pattern).expanduser()
        anchor = Path(folder.anchor)
        yield from sorted(anchor.glob(str((folder / "bin" / "java").relative_to(anchor))))


@cache
def java_version(java: Path) -> int | None:
    """Major version that the executable states, None when it does not run."""
    if not java.is_file():
        return None
    try:
        ran = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', ran.stderr + ran.stdout)
    if found is None:
        return None
    major = int(found[1])
    return int(found[2] or 0) if major == 1 else major
