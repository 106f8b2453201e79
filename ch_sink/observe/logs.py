"""Lines that a command writes while it works: its log as text or JSON, and its progress.

The log is the product's own, and nobody else's unless asked for.
"""

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Literal, Self

Format = Literal["text", "json"]

_OWN = "ch_sink"
_CLIENT = "ch_sink.kafka.client"
"""The logger of librdkafka, which repeats itself ten times a second."""
_WIRE = "py4j"
FOR_THE_TERMINAL = {"for_the_terminal": True}
"""``extra`` of a line with a secret."""


def kept(record: logging.LogRecord) -> bool:
    """The filter of a handler whose lines may be kept, such as in a file: leaves out what is for the terminal."""
    return not hasattr(record, "for_the_terminal")


class _Text(logging.Formatter):
    """``2026-11-22 12:03:07 INFO    message``, in UTC."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        return datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%d %H:%M:%S")


class _Json(logging.Formatter):
    """One object a line: time, level, stream if the line is about one, message, and the trace of an error."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
        }
        stream = getattr(record, "stream", None)
        if stream is not None:
            line["stream"] = stream
        if not record.name.startswith(_OWN):
            line["logger"] = record.name
        line["message"] = record.getMessage()
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def formatter(form: Format) -> logging.Formatter:
    """The formatter of a handler."""
    return _Json() if form == "json" else _Text()


@contextmanager
def logging_to(handlers: Sequence[logging.Handler], *, level: int, libraries: bool = False) -> Iterator[None]:
    """Send the product's log to these handlers alone, and with ``libraries`` everybody's; closes them at the end."""
    own, root, client = logging.getLogger(_OWN), logging.getLogger(), logging.getLogger(_CLIENT)
    wire = logging.getLogger(_WIRE)
    before = own.handlers, own.level, own.propagate, root.handlers, root.level, client.level, wire.level
    own.handlers, own.propagate = list(handlers), False
    # Without a handler Python prints warnings of libraries to standard error.
    root.handlers = list(handlers) if libraries else [logging.NullHandler()]
    own.setLevel(level)
    root.setLevel(level if libraries else logging.WARNING)
    client.setLevel(level if libraries else logging.CRITICAL)
    # Below that it logs each command: pickled functions, and with them the configuration and its passwords.
    wire.setLevel(logging.INFO if libraries else logging.CRITICAL)
    try:
        yield
    finally:
        own.handlers, own_level, own.propagate, root.handlers, root_level, client_level, wire_level = before
        for logger, was in ((own, own_level), (root, root_level), (client, client_level), (wire, wire_level)):
            logger.setLevel(was)
        for handler in handlers:
            handler.close()


class Step(str):
    """A line of progress that the next one replaces. ``share``: how much is done, 0 to 1; None if unknown."""

    share: float | None

    def __new__(cls, text: str, share: float | None = None) -> Self:
        step = super().__new__(cls, text)
        step.share = None if share is None else min(max(share, 0.0), 1.0)
        return step
