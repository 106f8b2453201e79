"""The configuration as a tree of plain values, each with its origin: file and line, environment or command line."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ch_sink.config.properties import by_environment_name
from ch_sink.errors import ConfigError

__all__ = ["PREFIX", "Tree", "read"]

PREFIX = "CH_SINK__"
"""Prefix of the environment variables that override keys."""

KeyPath = tuple[str, ...]


@dataclass(slots=True)
class Tree:
    """Values by section and key. ``name`` is the file's name, for error messages."""

    name: str
    values: dict[str, Any] = field(default_factory=dict)
    origin: dict[KeyPath, str] = field(default_factory=dict)
    """Key path → "line 7", "environment variable X" or "--set x"."""
    without_brokers: bool = False
    """A DataFrame brings the records: ``kafka`` need not name brokers."""

    def where(self, path: KeyPath) -> str:
        """Origin of a key, else of the nearest section around it or key in it."""
        for end in range(len(path), 0, -1):
            if path[:end] in self.origin:
                return self.origin[path[:end]]
        below = (origin for known, origin in self.origin.items() if known[: len(path)] == path)
        return next(below, "")

    def put(self, path: KeyPath, value: str, origin: str) -> None:
        """Set one key. Raises ConfigError if its section is a plain value."""
        node = self.values
        for step in path[:-1]:
            below = node.setdefault(step, {})
            if below is None:
                below = node[step] = {}
            if not isinstance(below, dict):
                raise ConfigError(f"{origin}: {step} is a value, not a section", hint="Check the key's spelling.")
            node = below
        node[path[-1]] = value
        self.origin[path] = origin


def read(given: Path | Mapping[str, Any], overrides: Sequence[str], environ: Mapping[str, str]) -> Tree:
    """File or what it would hold, then environment, then ``--set``; the later wins.

    Raises ConfigError for a missing file, one that is not a YAML mapping, a duplicate key or a malformed override.
    """
    tree = _file(given) if isinstance(given, Path) else Tree("the configuration", deepcopy(dict(given)))
    known = by_environment_name()
    for name in sorted(environ):
        if name.startswith(PREFIX):
            tree.put(_environment_path(name, known), environ[name], f"environment variable {name}")
    for item in overrides:
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {key!r} has no value", hint="Write it as --set clickhouse.table=orders.")
        tree.put(_dotted_path(key.strip()), value, f"--set {key.strip()}")
    return tree


def _environment_path(name: str, known: Mapping[str, str]) -> KeyPath:
    path = tuple(step.lower() for step in name.removeprefix(PREFIX).split("__"))
    if "" in path:
        raise ConfigError(
            f"environment variable {name} names no key", hint=f"Write for instance {PREFIX}CLICKHOUSE__PASSWORD."
        )
    if path[0] == "kafka" and len(path) > 1:
        rest = "_".join(path[1:])
        return ("kafka", known.get(rest, rest))
    return path


def _dotted_path(key: str) -> KeyPath:
    """Keys of ``kafka``, ``clickhouse.settings`` and ``spark.conf`` may contain dots."""
    for section in (("kafka",), ("clickhouse", "settings"), ("spark", "conf"), ("init", "settings")):
        prefix = ".".join(section) + "."
        if key.startswith(prefix):
            return (*section, key.removeprefix(prefix))
    return tuple(key.split("."))


def _file(path: Path) -> Tree:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file", hint="Give the path of the stream's YAML file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", hint="Check that it is a readable text file.") from None
    tree = Tree(str(path))
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            return tree
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(f"{path} is not a mapping of keys", hint="It must have sections such as `kafka:`.")
        _walk(node, (), tree)
        tree.values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(_syntax(path, error), hint="Check indentation, colons and quotes near that line.") from None
    return tree


def _walk(node: yaml.MappingNode, above: KeyPath, tree: Tree) -> None:
    """Record each key's line; refuse a key that appears twice."""
    seen: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if not isinstance(key, yaml.ScalarNode):
            raise ConfigError(f"{tree.name} line {line}: a key must be plain text", hint="Put it in quotes.")
        name = str(key.value)
        if name in seen:
            dotted = ".".join((*above, name))
            raise ConfigError(
                f"{tree.name} line {line}: {dotted} appears twice, first on line {seen[name]}", hint="Keep one of them."
            )
        seen[name] = line
        tree.origin[(*above, name)] = f"line {line}"
        if isinstance(value, yaml.MappingNode):
            _walk(value, (*above, name), tree)
        elif isinstance(value, yaml.SequenceNode):
            for place, item in enumerate(value.value):
                if isinstance(item, yaml.MappingNode):
                    here = (*above, name, str(place))
                    tree.origin[here] = f"line {item.start_mark.line + 1}"
                    _walk(item, here, tree)


def _syntax(path: Path, error: yaml.YAMLError) -> str:
    """Where and why, without the line itself: it may contain a secret."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or "not readable as YAML"
    return f"{path} line {mark.line + 1}: {problem}" if mark else f"{path}: {problem}"
