"""How Kafka keys are written. Kafka picks a record's partition by the bytes of its key, not by what they mean."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from ch_sink.decode.framing import AVRO_HEAD, Envelopes, Framed, FramingError
from ch_sink.decode.key_layouts import fields_of


@dataclass(frozen=True, slots=True)
class KeyForm:
    """One way in which keys of a chunk are written."""

    schema: str
    """Name of the keys' schema, empty if they have none: connectors that share a topic have one each."""
    name: str
    first: int
    """Place of the first record whose key is written so."""
    ignored: tuple[str, ...] = ()
    """Fields of these keys that are left out of the table's key."""


def key_forms(keys: Sequence[bytes | None], envelopes: Envelopes, ignored: Collection[str]) -> list[KeyForm]:
    """The forms of keys, in the order in which they come first; keys that cannot be read have none.

    Raises RegistryError.
    """
    given = [place for place, key in enumerate(keys) if key is not None and key != b"null"]
    found: list[KeyForm] = []
    while given:
        values = [key for place in given if (key := keys[place]) is not None]
        try:
            groups = envelopes.split(values)
        except FramingError as error:
            bad = set(error.places)
            given = [place for at, place in enumerate(given) if at not in bad]
            continue
        for framed, places, payloads in groups:
            mine = tuple(name for name in fields_of(framed, payloads[0]) if name in ignored) if ignored else ()
            schema = (framed.avro.name if framed.avro is not None else framed.schema and framed.schema.name) or ""
            found.append(KeyForm(schema, _name(framed), given[places[0]] if places is not None else given[0], mine))
        break
    return sorted(found, key=lambda form: form.first)


def _name(framed: Framed) -> str:
    if framed.avro is not None:
        return f"Avro with schema id {int.from_bytes(framed.prefix[1:AVRO_HEAD], 'big', signed=True)}"
    if framed.prefix:
        return f"JSON with schema {blake2b(framed.prefix, digest_size=4).hexdigest()}"
    return "JSON without schema"
