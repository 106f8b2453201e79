"""The JSON Schema of a configuration file, for editors: generated from the models that check files."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

from pydantic import BaseModel

from ch_sink.config.model import Config
from ch_sink.config.problems import entry_section
from ch_sink.config.properties import LIBRDKAFKA, REGISTRY, SECRETS
from ch_sink.config.secret_files import SECRET_KEYS
from ch_sink.config.sections import Section

__all__ = ["json_schema"]

_TEMPLATE = "May hold {database}, {schema}, {table}, {topic}, {topic[1]}."
_PATTERN = {"type": "string", "format": "regex"}
_SHARED = ("kafka", "spark", "tables")
"""Keys that do not differ from table to table."""


def json_schema() -> dict[str, Any]:
    """The schema of a file of one topic or of many."""
    made = Config.model_json_schema()
    sections: dict[str, Any] = made["$defs"]
    for model in _models(Config):
        _describe(sections[model.__name__] if model is not Config else made, model)
    sections["KafkaSection"] = _kafka(sections["KafkaSection"])
    for section in sections.values():
        _with_files(section)
    place = sections["ClickHouseSection"]
    place["required"] = ["url"]
    for name in ("database", "table"):
        place["properties"][name]["description"] = _TEMPLATE
    keys = made["properties"]
    own = keys["tables"]
    sections["Exception"] = _exception(keys)
    sections["ExceptionClickHouseSection"] = {**deepcopy(place), "required": []}
    keys["state_tables"] = {**own, "description": "Names of the sink's own tables."}
    keys["tables"] = {
        "description": "Exceptions for topics; the first that matches holds.",
        "anyOf": [{"type": "array", "items": {"$ref": "#/$defs/Exception"}}, {"$ref": "#/$defs/TablesSection"}],
    }
    made.update(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "ch_sink",
            "description": "Streams of change events from Kafka into ClickHouse tables.",
        }
    )
    return made


def _kafka(found: dict[str, Any]) -> dict[str, Any]:
    """The section ``kafka`` as files have it: properties of librdkafka beside ``topic`` and ``topics``."""
    scalar = {"type": ["string", "number", "boolean"]}
    keys: dict[str, Any] = {
        "topic": {"type": "string", "minLength": 1, "description": "The one topic."},
        "topics": {
            "description": "Many topics: a regular expression for whole names, or a list of names and expressions.",
            "anyOf": [_PATTERN, {"type": "array", "items": {"type": "string"}, "minItems": 1}],
        },
    }
    for name in sorted(LIBRDKAFKA | REGISTRY):
        keys[name] = {**scalar, "writeOnly": True} if name in SECRETS else dict(scalar)
    return {
        "type": "object",
        "title": "KafkaSection",
        "description": found.get("description", ""),
        "properties": keys,
        "additionalProperties": False,
        "oneOf": [{"required": ["topic"]}, {"required": ["topics"]}],
        "anyOf": [{"required": ["bootstrap.servers"]}, {"required": ["metadata.broker.list"]}],
    }


def _with_files(section: dict[str, Any]) -> None:
    """Secrets may be in files: ``password_file`` beside ``password``."""
    keys = section.get("properties", {})
    for name in sorted(SECRET_KEYS & keys.keys()):
        keys[f"{name}_file"] = {"type": "string", "description": f"A file that holds `{name}`."}


def _exception(keys: dict[str, Any]) -> dict[str, Any]:
    own = {name: deepcopy(schema) for name, schema in keys.items() if name not in _SHARED}
    own["clickhouse"] = {"$ref": "#/$defs/ExceptionClickHouseSection"}
    own["match"] = {**_PATTERN, "description": "A regular expression for whole names of topics."}
    own["skip"] = {"type": "boolean", "description": "These topics are left out."}
    return {"type": "object", "properties": own, "required": ["match"], "additionalProperties": False}


def _models(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for name, field in model.model_fields.items():
        kind = entry_section(model, name) or field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from _models(kind)


def _describe(schema: dict[str, Any], model: type[BaseModel]) -> None:
    """Add the texts under the model's fields."""
    texts = _texts(model)
    for name, found in schema["properties"].items():
        if name in texts and "description" not in found:
            found["description"] = texts[name]


def _texts(model: type[BaseModel]) -> dict[str, str]:
    [tree] = ast.parse(textwrap.dedent(inspect.getsource(model))).body
    assert isinstance(tree, ast.ClassDef)
    out: dict[str, str] = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match text:
                case ast.Expr(value=ast.Constant(value=str(said))):
                    out[field.target.id] = " ".join(said.replace("``", "`").split())
    return out
