"""Finds the databases' programs, and lets root on Debian and Ubuntu install them from the distribution's packages."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.real.stand.daemon import Missing

_FOLDERS = (
    "/usr/sbin",
    "/usr/local/sbin",
    "/usr/lib/postgresql/*/bin",
    "/opt/homebrew/opt/*/bin",
    "/usr/local/opt/*/bin",
)


def programs(packages: str, names: Sequence[str]) -> list[Path]:
    """Paths of these programs, which these packages (separated by spaces) bring.

    Raises Missing, with the reason, if they are neither here nor installable.
    """
    if (found := _found(names)) is not None:
        return found
    why = _install(packages)
    if (found := _found(names)) is not None:
        return found
    raise Missing(f"needs {' and '.join(names)} (Debian and Ubuntu: apt-get install {packages}): {why or 'not found'}")


def _found(names: Sequence[str]) -> list[Path] | None:
    """All of them in one place, the newest release where a pattern holds several."""
    on_path = [shutil.which(name) for name in names]
    if all(on_path):
        # A program looks for its companions beside itself: links are followed.
        return [Path(str(path)).resolve() for path in on_path]
    for pattern in _FOLDERS:
        for folder in sorted(Path("/").glob(pattern[1:]), key=_release, reverse=True):
            found = [folder / name if (folder / name).exists() else shutil.which(name) for name in names]
            if all(found):
                return [Path(str(path)) for path in found]
    return None


def _release(folder: Path) -> tuple[int, ...]:
    return tuple(int(part) for part in folder.parent.name.replace("@", ".").split(".") if part.isdigit())


@cache
def _install(packages: str) -> str:
    """Why it could not be installed; empty when it was."""
    apt = shutil.which("apt-get")
    if apt is None or os.getuid() != 0:
        return "not installed, and only root on Debian or Ubuntu installs it"
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    options = ["-qq", "-o", "Acquire::Retries=2", "-o", "Acquire::http::Timeout=20", "-o", "DPkg::Lock::Timeout=120"]
    for command in (["update"], ["install", "-y", "--no-install-recommends", *packages.split()]):
        try:
            ran = subprocess.run(
                [apt, *options, *command], capture_output=True, text=True, timeout=300, env=environ, check=False
            )
        except (OSError, subprocess.SubprocessError) as error:
            return str(error)
        if ran.returncode != 0 and command[0] == "install":
            return f"apt-get: {(ran.stderr.strip().splitlines() or ['no reason given'])[-1]}"
    return ""
