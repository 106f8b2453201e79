"""Compiles the scanner where it lies: ``python -m ch_sink.decode.native.build``. Needs a C compiler."""

import os
import shlex
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

_HERE = Path(__file__).parent
_FLAGS = ("-O2", "-std=c99", "-Wall", "-Wextra", "-shared", "-fPIC")


def compiled(target: Path) -> str:
    """Compile to this file. Returns what was wrong; empty if all went well."""
    compiler = shlex.split(os.environ.get("CC", "cc"))
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        source = zlib.crc32(b"".join(one.read_bytes() for one in sorted(_HERE.glob("*.[ch]"))))
        command = [*compiler, *_FLAGS, f"-DSOURCE={source}u", "-o", str(made), *map(str, sorted(_HERE.glob("*.c")))]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            return str(error)
        if done.returncode:
            return done.stderr
        made.replace(target)  # a running process keeps the one that it has
    return ""


if __name__ == "__main__":
    sys.exit(compiled(_HERE / "libscan.so.1") or 0)
