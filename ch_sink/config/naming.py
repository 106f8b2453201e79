"""Names from templates: ``{table}`` and the like, filled from a topic's name or from the source block of its events."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from ch_sink.errors import ConfigError
from ch_sink.model.values import SourceTable

FIELDS = ("database", "schema", "table", "topic", "topic[1]")
"""The placeholders of a template; any part of the topic's name can be taken by its number."""

_PLACE = re.compile(r"\{([^{}]*)\}")
_PART = re.compile(r"topic\[(-?\d+)\]")
_PARTS = 3
"""Parts of a topic's name, ``prefix.schema.table`` at least, from which schema and table can be read."""


def fields_in(template: str) -> tuple[str, ...]:
    """The fields of a template, in order."""
    return tuple(_PLACE.findall(template))


def takes_table(templates: Iterable[str], topic: str) -> bool:
    """Whether the templates name the source's table, and the topic's name does not say which one it is."""
    wanted = {name for template in templates for name in fields_in(template)}
    return bool(wanted & {"schema", "table"}) and len(topic.split(".")) < _PARTS


def needs_event(templates: Iterable[str], topic: str) -> bool:
    """Whether the topic's name does not say all that the templates need, so that an event must be seen.

    Schema and table are the last two parts of a name of three parts or more, as connectors name their topics. The
    database is never certain: it may be the part before the table, or in no part at all.
    """
    return takes_table(templates, topic) or any("database" in fields_in(template) for template in templates)


def render(
    template: str,
    topic: str,
    source: SourceTable | None = None,
    *,
    key: str = "the template",
    in_sql: bool = False,
    by_event: bool = False,
) -> str:
    """The template with its fields filled. ``source``: of a sampled event; None if there is none.

    ``in_sql``: the template is SQL, with its fields inside quotes. ``by_event``: schema and table are those of the
    event, whatever the topic is called.

    Raises ConfigError for a field that does not exist, or that neither the name nor the event shows.
    """

    def filled(found: re.Match[str]) -> str:
        value = _value(found[1], topic, source or SourceTable(), f"{key}: {template}", by_event)
        return value.replace("\\", "\\\\").replace("'", "\\'") if in_sql else value

    return _PLACE.sub(filled, template)


def _value(name: str, topic: str, source: SourceTable, where: str, by_event: bool) -> str:
    parts = topic.split(".")
    if name == "topic":
        return topic
    number = _PART.fullmatch(name)
    if number is not None:
        place = int(number[1])
        if not -len(parts) <= place < len(parts):
            raise ConfigError(
                f"{where}: topic {topic} has no part {place}; its {len(parts)} parts are numbered from 0",
                hint="Use another number, or an exception under `tables:` for this topic.",
            )
        return parts[place]
    if name not in FIELDS:
        raise ConfigError(
            f"{where} has the unknown field {{{name}}}",
            hint="The fields are {database}, {schema}, {table}, {topic}, and {topic[0]}, {topic[1]}, … for its parts.",
        )
    long = len(parts) >= _PARTS and not by_event
    value = {
        "table": parts[-1] if long else source.table,
        "schema": parts[-2] if long else source.schema or source.database,
        "database": source.database or (parts[-2] if long else ""),
    }[name]
    if not value:
        raise ConfigError(
            f"{where}: neither the name of topic {topic} nor its events say what {{{name}}} is",
            hint="Write the name itself in an exception under `tables:` for this topic, use {topic}, or leave the "
            "topic out (skip: true).",
        )
    return value


_PLAIN = re.compile(r"[A-Za-z0-9._-]+")
"""A legal topic name. In a list it stands for itself, though a dot would match any character in a pattern."""


@dataclass(frozen=True, slots=True)
class Topics:
    """Names and patterns of topics. ``text`` is how the file writes them."""

    text: str
    names: frozenset[str] = frozenset()
    patterns: tuple[re.Pattern[str], ...] = ()

    @staticmethod
    def of(given: object) -> "Topics":
        """From the value of ``kafka.topics``. Raises ValueError if it is neither a pattern nor a list of them."""
        if isinstance(given, str) and given:
            return Topics(given, patterns=(_compiled(given),))
        if not isinstance(given, list) or not given or not all(isinstance(item, str) and item for item in given):
            raise ValueError("must be a pattern or a list of topics and patterns")
        names = frozenset(item for item in given if _PLAIN.fullmatch(item))
        patterns = tuple(_compiled(item) for item in given if item not in names)
        return Topics(", ".join(given), names, patterns)

    @property
    def open(self) -> bool:
        """Whether topics that do not exist yet may belong to the job."""
        return bool(self.patterns)

    def among(self, existing: Iterable[str]) -> tuple[str, ...]:
        """Those of the topics that belong to the job, sorted.

        Topics whose names begin with ``__`` are Kafka's own; a pattern must begin so to match them.
        """
        return tuple(sorted(name for name in existing if name in self.names or self._matches(name)))

    def missing(self, existing: Iterable[str]) -> tuple[str, ...]:
        """Listed names that do not exist, sorted."""
        return tuple(sorted(self.names.difference(existing)))

    def _matches(self, name: str) -> bool:
        own = name.startswith("__")
        return any(p.fullmatch(name) and (not own or p.pattern.startswith("__")) for p in self.patterns)


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"is not a pattern: {error}") from None
