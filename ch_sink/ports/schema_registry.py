"""Schemas by the ids that records name."""

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
    """Texts of the schemas whose names it uses, each after those that it uses itself."""


class SchemaRegistry(Protocol):
    """The schemas that records in Confluent framing name by their ids."""

    def find(self, schema_id: int) -> RegisteredSchema | None:
        """The schema of this id, None if the registry has none. Raises RegistryError when it cannot be asked."""
        ...
