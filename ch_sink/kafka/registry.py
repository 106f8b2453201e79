"""The schema registry, through confluent-kafka's client."""

import re
import time
import warnings
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from ch_sink.errors import ConfigError, RegistryError, RegistryRefused, RegistryUnavailable
from ch_sink.kafka.settings import HIDDEN, redact
from ch_sink.ports import RegisteredSchema, SchemaRegistry

_DEFAULTS: dict[str, Any] = {"timeout": 10.0, "max.retries": 4, "retries.wait.ms": 250, "retries.max.wait.ms": 4000}
_NUMBERS = frozenset((*_DEFAULTS, "cache.capacity", "cache.latest.ttl.sec"))
_SUPPORTED_SOURCES = frozenset(("", "URL", "USER_INFO"))
"""Values of Java's ``basic.auth.credentials.source`` that need no action: the user is in the usual property."""
_UNKNOWN_CODES = range(40400, 40500)
"""Error codes of a registry's own 404 responses; the 404 of a wrong path has another code or none."""
_FORGET = 60.0
"""Seconds after which an unknown id is requested again."""
_PATIENCE, _PATIENT = 0.5, 8
"""The first few unknown ids are requested twice, this many seconds apart: a replica of the registry may lag."""
_USER = re.compile(r"(?<=//)[^\s,]*@")
"""The user part of a URL; its password may contain characters that end a host name."""


def schema_registry(properties: Mapping[str, str]) -> SchemaRegistry | None:
    """The registry of these properties, one for each process; None if there is no ``url``.

    Names are those of confluent-kafka's client (``kafka.registry()`` of the configuration). Raises ConfigError.
    """
    return _registry(tuple(sorted(properties.items()))) if properties.get("url") else None


@lru_cache(maxsize=16)
def _registry(properties: tuple[tuple[str, str], ...]) -> "ConfluentRegistry":
    return ConfluentRegistry(dict(properties))


class _NotRegistered(Exception):
    """The registry has no schema of this id."""


class ConfluentRegistry:
    """A registry that speaks Confluent's protocol. A schema never changes under its id: each is requested once."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._url = _USER.sub("", properties["url"])
        self._hide = sorted(_secrets(properties), key=len, reverse=True)
        self._client = self._connect(properties)
        self._registered = lru_cache(maxsize=1024)(self._ask)
        self._unknown: dict[int, float] = {}
        """Ids that the registry does not have, each with the time of that answer."""

    def __repr__(self) -> str:
        return f"ConfluentRegistry({self._url!r})"

    def find(self, schema_id: int) -> RegisteredSchema | None:
        """The schema of an id with all that it references; None if the registry has none. Raises RegistryError."""
        now = time.monotonic()
        if now - self._unknown.get(schema_id, now - _FORGET) < _FORGET:
            return None
        try:
            return self._registered(schema_id)
        except _NotRegistered:
            recent = {other: since for other, since in self._unknown.items() if now - since < _FORGET}
            self._unknown = {**recent, schema_id: time.monotonic()}
            return None

    def _ask(self, schema_id: int) -> RegisteredSchema:
        """The schema of an id. Raises _NotRegistered, RegistryError."""
        schema = self._get(f"schema id {schema_id}", "get_schema", schema_id)
        if schema is None and len(self._unknown) < _PATIENT:
            time.sleep(_PATIENCE)
            schema = self._get(f"schema id {schema_id}", "get_schema", schema_id)
        if schema is None:
            raise _NotRegistered
        texts: dict[tuple[str, int], str] = {}
        self._refer(schema, texts, f"schema id {schema_id}", ())
        return RegisteredSchema(schema.schema_type or "AVRO", schema.schema_str, tuple(texts.values()))

    def _refer(
        self, schema: Any, texts: dict[tuple[str, int], str], what: str, above: tuple[tuple[str, int], ...]
    ) -> None:
        """Fill ``texts`` with the schemas that one references, each after those that it references itself."""
        for reference in schema.references or ():
            place = (reference.subject, reference.version)
            if place in texts or place in above:
                continue
            found = self._get(f"{what}, which references {place[0]} version {place[1]}", "get_version", *place)
            if found is None:
                raise RegistryError(
                    f"the schema registry at {self._url} lacks subject {place[0]} version {place[1]}, "
                    f"which {what} references",
                    hint="Register the schema again, or restore it if it was deleted.",
                )
            self._refer(found.schema, texts, what, (*above, place))
            texts[place] = found.schema.schema_str

    def _get(self, what: str, method: str, *arguments: Any) -> Any:
        """The client's answer; None for an id that the registry does not have."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            return getattr(self._client, method)(*arguments)
        except SchemaRegistryError as error:
            if error.http_status_code == 404 and error.error_code in _UNKNOWN_CODES:
                return None
            raise self._refused(what, error.http_status_code, str(error.error_message)) from None
        except Exception as error:  # noqa: BLE001 (transport, TLS and proxy errors have no common class)
            raise RegistryUnavailable(
                f"the schema registry at {self._url} does not answer for {what}: {self._shown(error)}",
                hint="Check kafka.schema.registry.url, the network and TLS settings, and that the registry runs.",
            ) from None

    def _refused(self, what: str, status: int, message: str) -> RegistryError:
        if status in (401, 403):
            return RegistryRefused(
                f"the schema registry at {self._url} refuses {what}: status {status}",
                hint="Check schema.registry.basic.auth.user.info or bearer.auth.*, and the user's rights.",
            )
        hint = "Check that the registry runs, and run again: no record is lost."
        if status < 500 and status != 429:
            hint = "Check the path in kafka.schema.registry.url (Apicurio: …/apis/ccompat/v7)."
        kind = RegistryUnavailable if status >= 500 or status == 429 else RegistryError
        return kind(
            f"the schema registry at {self._url} answers status {status} for {what}: {self._shown(message)}", hint=hint
        )

    def _shown(self, text: object) -> str:
        """An error's text, cut short and without secrets."""
        shown = _USER.sub("", str(text) or type(text).__name__)
        for secret in self._hide:
            shown = shown.replace(secret, HIDDEN)
        return shown if len(shown) <= 300 else shown[:299] + "…"

    def _connect(self, properties: Mapping[str, str]) -> Any:
        given: dict[str, Any] = dict(properties)
        source = str(given.pop("basic.auth.credentials.source", ""))
        if source.upper() not in _SUPPORTED_SOURCES:
            raise ConfigError(
                f"kafka.schema.registry.basic.auth.credentials.source {source} is not supported",
                hint="Set the user in kafka.schema.registry.basic.auth.user.info, as name:password.",
            )
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the client's own dependencies
                from confluent_kafka.schema_registry import SchemaRegistryClient
        except ImportError as error:
            raise ConfigError(
                f"the schema registry's client is not installed ({error.name})",
                hint="Install it: pip install 'ch-sink[avro]'.",
            ) from None
        try:
            numbers = {name: _number(name, text) for name, text in given.items() if name in _NUMBERS}
            return SchemaRegistryClient.new_client({**_DEFAULTS, **given, **numbers})
        except (ValueError, TypeError, OSError) as error:
            raise ConfigError(
                f"kafka.schema.registry: {self._shown(error)}", hint="See docs/configuration.md, section kafka."
            ) from None


def _number(name: str, text: str) -> float | int:
    try:
        return float(text) if name == "timeout" else int(text)
    except ValueError:
        raise ValueError(f"{name} must be a number") from None


def _secrets(properties: Mapping[str, str]) -> Iterable[str]:
    """The secret values, and the password within a user's ``name:password``."""
    hidden = redact(properties)
    for name, value in properties.items():
        if hidden[name] == HIDDEN or name in ("basic.auth.user.info", "proxy"):
            yield from {value, value.partition(":")[2]} - {""}
