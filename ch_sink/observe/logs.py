"""The log of a job: lines of text or JSON, the product's own and nobody else's unless asked for."""

import json
import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

__all__ = ["Format", "formatter", "log_to"]

Format = Literal["text", "json"]

_OWN = "ch_sink"
_CLIENT = "ch_sink.kafka.client"
"""What librdkafka logs: it repeats itself ten times a second."""


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


def log_to(handlers: Sequence[logging.Handler], *, level: int, libraries: bool = False) -> None:
    """Send the product's log to these handlers, and with ``libraries`` everybody's; replaces earlier ones."""
    own, root = logging.getLogger(_OWN), logging.getLogger()
    for logger in (own, root):
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
    own.setLevel(level)
    logging.getLogger(_CLIENT).setLevel(level if libraries else logging.CRITICAL)
    own.propagate = libraries
    # Without a handler Python prints warnings of libraries to standard error.
    for handler in handlers if libraries else [logging.NullHandler()]:
        root.addHandler(handler)
    if libraries:
        root.setLevel(level)
        return
    for handler in handlers:
        own.addHandler(handler)
