"""Hatchling's hook: compiles the scanner into the wheel if there is a C compiler; else the wheel does without."""

import importlib.util
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_NATIVE = Path(__file__).parent.parent / "ch_sink/decode/native"


class Hook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds ``libscan.so.1``."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before the wheel is packed. An editable installation compiles in place."""
        if self.target_name != "wheel":
            return
        spec = importlib.util.spec_from_file_location("build", _NATIVE / "build.py")
        assert spec is not None
        assert spec.loader is not None
        build = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(build)
        target = _NATIVE / "libscan.so.1"
        wrong = build.compiled(target)
        if wrong:
            self.app.display_warning(f"the wheel has no compiled scanner, and decodes JSON more slowly: {wrong}")
            return
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        build_data["artifacts"].append("/ch_sink/decode/native/libscan.so.1")
