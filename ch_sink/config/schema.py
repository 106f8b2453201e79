"""The schema of a configuration, and an example of one with every option."""

from copy import deepcopy
from importlib.resources import files
from typing import Any

from ch_sink.config.model import Config
from ch_sink.config.properties import LIBRDKAFKA, REGISTRY, SECRETS
from ch_sink.config.tree import SECRET_KEYS

EXAMPLE = files(__package__).joinpath("example.yaml").read_text(encoding="utf-8")


_TEMPLATE = "May hold {database}, {schema}, {table}, {topic}, {topic[1]}."
_PATTERN = {"type": "string", "format": "regex"}
_SHARED = ("kafka", "spark", "state_tables", "tables")
"""Keys that do not differ from table to table."""


def json_schema() -> dict[str, Any]:
    """The schema of a file of one topic or of many."""
    made = Config.model_json_schema()
    sections: dict[str, Any] = made["$defs"]
    _one_line(made)
    sections["KafkaSection"] = _kafka(sections["KafkaSection"])
    for section in sections.values():
        _with_files(section)
    place = sections["ClickHouseSection"]
    place["required"] = ["url"]
    for name in ("database", "table"):
        place["properties"][name]["description"] = _TEMPLATE
    keys = made["properties"]
    sections["Exception"] = _exception(keys)
    sections["ExceptionClickHouseSection"] = {**deepcopy(place), "required": []}
    keys["tables"] = {
        "description": "Exceptions for topics; the first that matches holds.",
        "type": "array",
        "items": {"$ref": "#/$defs/Exception"},
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


def _one_line(found: Any) -> None:
    """Descriptions as one line in Markdown."""
    for inner in found.values() if isinstance(found, dict) else found if isinstance(found, list) else ():
        _one_line(inner)
    if isinstance(found, dict) and isinstance(text := found.get("description"), str):
        found["description"] = " ".join(text.replace("``", "`").split())
