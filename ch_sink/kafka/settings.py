"""The user's librdkafka properties: what is passed on, what the sink sets itself, and what is never shown."""

import json
import re
from collections.abc import Iterator, Mapping

__all__ = ["HIDDEN", "KafkaSettings", "redact"]

HIDDEN = "••••••"
_SECRET = re.compile(r"password|passphrase|secret|key\.pem|oauthbearer\.config|jaas|token(?!\.endpoint)", re.IGNORECASE)

_CONSUMER_DEFAULTS = {
    "isolation.level": "read_committed",
    # A fetch that waits at the end of one partition delays the next assignment on that broker until it returns.
    "fetch.wait.max.ms": "5",
    # Records fetched past the end of a range are discarded, so the queue is short. Larger fetches take more processor
    # time, since the cache forgets them before they are copied; smaller ones are slow where the broker is far.
    "queued.max.messages.kbytes": "16384",
    "max.partition.fetch.bytes": "2097152",
    # The default, a pause of one second whenever the queue is full, makes a short queue ten times slower.
    "fetch.queue.backoff.ms": "1",
    "fetch.error.backoff.ms": "50",
    "reconnect.backoff.max.ms": "2000",
    # How long an unknown topic counts as one that is still being created.
    "topic.metadata.propagation.max.ms": "3000",
}
_CONSUMER_FIXED = {
    "enable.auto.commit": "false",
    "enable.auto.offset.store": "false",
    # With any other value librdkafka skips missing offsets silently.
    "auto.offset.reset": "error",
    "enable.partition.eof": "true",
    "allow.auto.create.topics": "false",
}
_CONSUMER_ONLY = {"max.partition.fetch.bytes", "isolation.level", "group.id", "client.rack", "check.crcs"}


def redact(properties: Mapping[str, object]) -> dict[str, str]:
    """The properties with every secret replaced: for logs, errors and ``repr``."""
    return {name: HIDDEN if _SECRET.search(name) else str(setting) for name, setting in properties.items()}


class KafkaSettings(Mapping[str, str]):
    """librdkafka properties as text. ``repr`` and ``str`` hide secrets; hashable, to name a cached client."""

    def __init__(self, properties: Mapping[str, object]) -> None:
        self._properties = {name: _text(setting) for name, setting in sorted(properties.items())}

    def __getitem__(self, name: str) -> str:
        return self._properties[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._properties)

    def __len__(self) -> int:
        return len(self._properties)

    def __hash__(self) -> int:
        return hash(tuple(self._properties.items()))

    def without_secrets(self, text: str) -> str:
        """The text with every secret of the properties replaced."""
        for name, setting in self._properties.items():
            if setting and _SECRET.search(name):
                text = text.replace(setting, HIDDEN)
        return text

    def __repr__(self) -> str:
        return f"KafkaSettings({redact(self._properties)!r})"

    @property
    def bootstrap(self) -> str:
        """The broker addresses, for error messages."""
        return self._properties.get("bootstrap.servers", "(no bootstrap.servers)")

    def for_consumer(self) -> dict[str, str]:
        """Properties of a consumer of ranges: defaults, the user's over them, and those that nobody can change."""
        return {"group.id": "ch_sink", **_CONSUMER_DEFAULTS, **self._properties, **_CONSUMER_FIXED}

    def for_group(self, group: str) -> dict[str, str]:
        """Properties of a client that only commits offsets of a consumer group."""
        return {**self.for_consumer(), "group.id": group}

    def for_admin(self) -> dict[str, str]:
        """Properties of an admin client: the user's without those that concern consuming only."""
        skip = re.compile(r"fetch\.|queued\.|enable\.|auto\.")
        kept = self._properties.items()
        return {name: text for name, text in kept if name not in _CONSUMER_ONLY and not skip.match(name)}

    def to_json(self) -> str:
        """All properties, secrets included: only for handing them to a process of the same job."""
        return json.dumps(self._properties)

    @classmethod
    def from_json(cls, text: str) -> "KafkaSettings":
        """Undo ``to_json``."""
        return cls(json.loads(text))


def _text(setting: object) -> str:
    return ("true" if setting else "false") if isinstance(setting, bool) else str(setting)
