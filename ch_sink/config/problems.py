"""Error messages for a wrong configuration: every problem at once, each with its line and the nearest valid name."""

import difflib
from collections.abc import Iterator
from typing import get_args, get_origin

from pydantic import BaseModel, ValidationError

from ch_sink.config.model import Config
from ch_sink.config.properties import LIBRDKAFKA, OWNED, REGISTRY, advice
from ch_sink.config.sections import KafkaSection
from ch_sink.config.tree import Tree
from ch_sink.errors import ConfigError

__all__ = ["config_error", "entry_section", "known_keys"]

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
        # Its line would be that of the section, which is no help.
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
        ending = f"; known here: {', '.join(sorted(known_keys(model)))}"
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
