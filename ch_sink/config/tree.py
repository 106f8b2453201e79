"""The configuration as a tree of plain values, each with its origin: file and line, environment or command line.

Secrets may stand in files of their own (``password_file: /run/secrets/clickhouse`` in the place of ``password``). What
is wrong is reported at once, each problem with its line and the nearest valid name.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from ch_sink.config.model import Config
from ch_sink.config.properties import LIBRDKAFKA, OWNED, REGISTRY, SECRETS, advice, by_environment_name
from ch_sink.config.sections import KafkaSection
from ch_sink.errors import ConfigError

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
            f"environment variable {name} does not name a key", hint=f"Write for instance {PREFIX}CLICKHOUSE__PASSWORD."
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
    """Place and reason, without the line itself: it may contain a secret."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or "not readable as YAML"
    return f"{path} line {mark.line + 1}: {problem}" if mark else f"{path}: {problem}"


_HIDDEN = frozenset(("properties", "secrets"))


def known_keys(model: type[BaseModel] = Config) -> dict[str, type[BaseModel] | None]:
    """Keys of a section, each with its model if it is a section itself."""
    keys: dict[str, type[BaseModel] | None] = {}
    for name, info in model.model_fields.items():
        kind = info.annotation
        section = kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
        if not (model is KafkaSection and name in _HIDDEN):
            keys[name] = section
    if model is KafkaSection:
        keys.update(dict.fromkeys(sorted(LIBRDKAFKA | REGISTRY)))
    return keys


def config_error(tree: Tree, found: ValidationError) -> ConfigError:
    """One error that lists all problems."""
    texts = [_text(tree, tuple(str(step) for step in e["loc"]), e["type"], e["msg"], e) for e in found.errors()]
    texts = list(dict.fromkeys(texts))
    hint = "docs/configuration.md lists every key with its values and default."
    if len(texts) == 1:
        return ConfigError(
            f"{tree.name} {texts[0]}" if texts[0].startswith("line") else f"{tree.name}: {texts[0]}", hint=hint
        )
    return ConfigError("\n".join([f"{tree.name}: {len(texts)} problems", *(f"  {text}" for text in texts)]), hint=hint)


def _text(tree: Tree, path: tuple[str, ...], kind: str, said: str, error: object) -> str:
    place = tree.where(path)
    key = ".".join(step for step in path if step not in _HIDDEN)
    lead = f"{place}: " if place else ""
    if kind == "extra_forbidden":
        return lead + _unknown(path)
    if kind == "missing":
        # Its line would be that of the section, which does not help.
        return f"{key} is missing"
    if kind in ("value_error", "assertion_error"):
        text = said.removeprefix("Value error, ")
        return f"{lead}{key}.{text}" if text.startswith("bootstrap.servers") else f"{lead}{key} {text}"
    if kind == "string_type":
        return f"{lead}{key} must be text; put the value in quotes"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        return f"{lead}{key} must be a section with keys of its own"
    if kind == "string_too_short":
        return f"{lead}{key} must not be empty"
    return f"{lead}{key}: {said[:1].lower()}{said[1:]}"


def _unknown(path: tuple[str, ...]) -> str:
    key = ".".join(path)
    model = _section_at(path[:-1])
    if model is KafkaSection and (why := advice(path[-1])):
        return f"{key} {why}"
    nearest = _nearest(path, model)
    ending = f"; did you mean {nearest}?" if nearest else ""
    if model is KafkaSection:
        return f"{key} is neither a key of this section nor a consumer property of librdkafka{ending}"
    if not nearest and model is not None:
        ending = f"; valid keys: {', '.join(sorted(known_keys(model)))}"
    return f"{key} is not a known key{ending}"


def _section_at(path: tuple[str, ...]) -> type[BaseModel] | None:
    """The section that a path leads to; of a section for each name, the name is skipped."""
    model: type[BaseModel] | None = Config
    steps = iter(path)
    for step in steps:
        if model is None:
            return None
        entry = entry_section(model, step)
        if entry is not None:
            next(steps, None)
        model = entry or known_keys(model).get(step)
    return model


def entry_section(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    """The section of each entry of a key that has one for every name, None for other keys."""
    kind = model.model_fields[name].annotation if name in model.model_fields else None
    entry = get_args(kind)[-1] if get_origin(kind) is dict else None
    return entry if isinstance(entry, type) and issubclass(entry, BaseModel) else None


def _nearest(path: tuple[str, ...], model: type[BaseModel] | None) -> str | None:
    """The likeliest key: the same name in another section, a similar one in this section, a similar one elsewhere."""
    elsewhere = {_short(full): full for full in _all()}
    if path[-1] in elsewhere:
        return elsewhere[path[-1]]
    if model is not None:
        keys, given = known_keys(model), path[-1].lower()
        longer = [key for key in keys if len(given) > 3 and key.startswith(given)] if model is not KafkaSection else []
        near = longer or difflib.get_close_matches(given, keys, n=1, cutoff=0.7)
        if near:
            return ".".join((*path[:-1], near[0]))
    near = difflib.get_close_matches(path[-1], elsewhere, n=1, cutoff=0.8)
    return elsewhere[near[0]] if near else None


def _short(full: str) -> str:
    """A key without its section; properties of ``kafka`` keep their dots."""
    return full.removeprefix("kafka.") if full.startswith("kafka.") else full.rpartition(".")[2]


def _all(model: type[BaseModel] = Config, above: str = "") -> Iterator[str]:
    for name, section in known_keys(model).items():
        if section is None:
            yield above + name
        else:
            yield from _all(section, f"{above}{name}.")


assert not OWNED & LIBRDKAFKA


SECRET_KEYS = SECRETS | {"password", "http_proxy", "mask_key"}
"""Keys whose values may be in a file of their own."""
_SUFFIX = "_file"


def read_secret_files(tree: Tree) -> None:
    """Replace each key such as ``password_file`` by ``password`` with the content of the file.

    A line break at the end of the file does not belong to the secret. Raises ConfigError if a file cannot be read, or
    if the secret is set as well.
    """
    _read(tree, tree.values, ())


def _read(tree: Tree, node: Any, path: tuple[str, ...]) -> None:
    if isinstance(node, list):
        for place, item in enumerate(node):
            _read(tree, item, (*path, str(place)))
    if not isinstance(node, dict):
        return
    for name, value in list(node.items()):
        secret = str(name).removesuffix(_SUFFIX)
        if secret == name or secret not in SECRET_KEYS:
            _read(tree, value, (*path, str(name)))
            continue
        here = (*path, str(name))
        where = f"{tree.name} {tree.where(here)}: {'.'.join(here)}"
        if node.get(secret):
            raise ConfigError(f"{where}: {secret} is set as well", hint="Keep one of them.")
        node[secret] = _content(where, str(value))
        tree.origin[(*path, secret)] = tree.where(here)
        del node[name]


def _content(where: str, file: str) -> str:
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(
            f"{where} cannot be read: {file}: {reason}", hint="Give the path of a file that this user may read."
        ) from None
    return text.removesuffix("\n").removesuffix("\r")
