"""A topic's partitions and watermarks."""

from dataclasses import dataclass

__all__ = ["TopicState"]


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic at one moment. By partition, ``low`` is the first offset held and ``high`` the one after the last.

    ``high`` is the last stable offset under ``read_committed``: nothing of an open transaction lies below it.
    """

    topic: str
    topic_id: str
    low: dict[int, int]
    high: dict[int, int]
