"""The picture of imports: no circle between rooms or files, no arrow upwards.

Computed from the syntax trees of ``ch_sink/``, imports inside functions included, and held against the floors that
`pyproject.toml` lists. It shares nothing with import-linter, which `make lint` runs on the same list.
"""

import ast
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "ch_sink"


@cache
def imported(path: Path, module: str) -> tuple[str, ...]:
    """Full names of what a file imports, relative names resolved."""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            whole = ".".join([*base, *([node.module] if node.module else [])])
            found += [f"{whole}.{name.name}" for name in node.names]
    return tuple(found)


def room_of(name: str) -> str | None:
    """``ch_sink.kafka.consumer`` is in the room ``kafka``; the package itself and others' modules are in none."""
    parts = name.split(".")
    return parts[1] if parts[0] == PACKAGE and len(parts) > 1 else None


def modules(root: Path) -> dict[str, Path]:
    """Full name of each module → its file; a package is its `__init__`."""
    return {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in sorted((root / PACKAGE).rglob("*.py"))
    }


def arrows(root: Path) -> dict[tuple[str, str], list[str]]:
    """Which room imports which, and the files that do it."""
    rooms = {
        path.stem for path in (root / PACKAGE).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    found: dict[tuple[str, str], list[str]] = {}
    for module, path in modules(root).items():
        own = room_of(module)
        for name in imported(path, module):
            other = room_of(name)
            if own is not None and other is not None and other != own and other in rooms:
                found.setdefault((own, other), []).append(f"{path.relative_to(root)} imports {name}")
    return found


def file_arrows(root: Path) -> dict[tuple[str, str], list[str]]:
    """Which module imports which. A package's `__init__` runs before its modules and is not an arrow of theirs."""
    files = modules(root)
    found: dict[tuple[str, str], list[str]] = {}
    for module, path in files.items():
        for name in imported(path, module):
            other = name if name in files else name.rpartition(".")[0]
            if other in files and other != module:
                found.setdefault((module, other), []).append(name)
    return found


def floors() -> dict[str, int]:
    """Room → its floor; 0 is the top."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    [layers] = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    return {room.strip(): floor for floor, rooms in enumerate(layers) for room in rooms.split("|")}


def circle(picture: dict[tuple[str, str], list[str]]) -> list[str]:
    below: dict[str, set[str]] = {}
    for upper, lower in picture:
        below.setdefault(upper, set()).add(lower)
    try:
        TopologicalSorter(below).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def upward(picture: dict[tuple[str, str], list[str]], floor: dict[str, int]) -> list[str]:
    """Imports that do not lead to a lower floor."""
    return [where for (own, other), places in picture.items() if floor[own] >= floor[other] for where in places]


def test_every_room_has_a_floor() -> None:
    rooms = {
        path.stem for path in (ROOT / PACKAGE).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert rooms - {"__init__", "__main__"} == set(floors())


def test_no_circle_between_rooms() -> None:
    assert circle(arrows(ROOT)) == []


def test_no_circle_between_files() -> None:
    assert circle(file_arrows(ROOT)) == []


def test_no_arrow_upwards() -> None:
    outside = {"__main__": -1}
    assert upward(arrows(ROOT), {**floors(), **outside}) == []


@pytest.mark.parametrize(
    "line",
    [
        "from ch_sink.kafka.reader import x",
        "from ch_sink.kafka import reader",
        "import ch_sink.kafka.reader",
        "from ..kafka import reader",
        "def f():\n    from ch_sink import kafka",
    ],
)
def test_every_way_of_importing_is_seen(tmp_path: Path, line: str) -> None:
    for room, text in (("kafka", "from ch_sink.types import column"), ("types", line)):
        folder = tmp_path / PACKAGE / room
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
        (folder / "column.py").write_text(text + "\n", encoding="utf-8")
    picture = arrows(tmp_path)
    assert set(picture) == {("kafka", "types"), ("types", "kafka")}
    assert set(circle(picture)) == {"kafka", "types"}
    [wrong] = upward(picture, {"kafka": 0, "types": 1})
    assert wrong.startswith(f"{PACKAGE}/types/column.py imports {PACKAGE}.kafka")
