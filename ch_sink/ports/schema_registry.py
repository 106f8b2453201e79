"""Schemas by the ids that records carry."""

from dataclasses import dataclass
from typing import Protocol

__all__ = ["RegisteredSchema", "SchemaRegistry"]


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema as the registry holds it."""

    kind: str
    """AVRO, PROTOBUF or JSON."""
    text: str
    references: tuple[str, ...] = ()
    """Texts of the schemas that it refers to, in order of dependency."""


class SchemaRegistry(Protocol):
    """The schemas to which records in Confluent framing refer by id."""

    def find(self, schema_id: int) -> RegisteredSchema | None:
        """The schema of this id, None if there is none. Raises RegistryError if the registry cannot be reached."""
        ...
