"""What is read of a topic besides its records in turn: earlier ones, and the schemas of their values."""

from dataclasses import dataclass
from typing import Protocol

from ch_sink.model.change import Records


class History(Protocol):
    """Earlier records of the same partition."""

    def before(self, offset: int, limit: int) -> Records:
        """Up to ``limit`` records at offsets below ``offset``, the nearest ones, in offset order."""
        ...


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
