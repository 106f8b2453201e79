"""Keys that StringConverter wrote as the text of a struct: no column can be read from them."""

import re

import msgspec

__all__ = ["REMEDY", "is_struct_text", "reason"]

_STRUCT_TEXT = re.compile(rb"(Struct)?\{.*\}", re.DOTALL)
REMEDY = (
    "Set key.converter to org.apache.kafka.connect.json.JsonConverter (or Avro's) at the connector and take a "
    "new snapshot into a new topic. If the key is one column, an ExtractField$Key transformation before "
    "StringConverter works too: then name the column with key_columns."
)


def is_struct_text(key: bytes) -> bool:
    """Whether a key is the text that Java prints for a struct or map, such as ``Struct{id=1}``."""
    if _STRUCT_TEXT.fullmatch(key) is None:
        return False
    try:
        msgspec.json.decode(key)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return True
    return False


def reason(topic: str, key: bytes) -> str:
    """Why a topic with such a key cannot be read."""
    text = key.decode(errors="replace")[:80]
    return (
        f"the keys of topic {topic} are text such as {text!r}: StringConverter wrote the key's struct as text, and no "
        "column can be read from it"
    )
