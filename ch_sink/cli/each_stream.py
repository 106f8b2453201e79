"""The streams of a command in turn: one that fails does not hold up the others."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ch_sink.cli.options import expecting_a_ledger
from ch_sink.cli.output import Output
from ch_sink.errors import ChSinkError, ConfigError, StreamsFailed

if TYPE_CHECKING:
    from ch_sink.config import Config


class EachStream:
    """The streams, and those of them that failed."""

    def __init__(self, out: Output, streams: "Sequence[Config]") -> None:
        self.streams = streams
        self.failed: dict[str, ChSinkError] = {}
        self._out = out
        self._tables: dict[str, str] = {}

    @contextmanager
    def guard(self, config: "Config") -> Iterator[None]:
        """Note an error of one stream, if there are others.

        Raises what concerns all of them: ConfigError, and an error that waiting may resolve.
        """
        try:
            with expecting_a_ledger(config):
                yield
        except ChSinkError as error:
            self._out.progress_done()
            if len(self.streams) < 2:
                raise
            if isinstance(error, ConfigError) or error.temporary:
                raise error.about(config.stream_name) from None
            self.fail(config, error)

    def fail(self, config: "Config", error: ChSinkError) -> None:
        """Go on without this stream."""
        place = config.clickhouse
        self._tables[config.stream_name] = f"{place.database}.{place.table}"
        self.failed[config.stream_name] = error
        self._out.warn(f"{config.stream_name} is skipped: {error}")

    def documents(self) -> list[dict[str, Any]]:
        """What the JSON document says of the streams that failed."""
        return [
            {"stream": name, "table": self._tables[name], "error": error.message, "next": error.hint}
            for name, error in self.failed.items()
        ]

    def expect_all(self) -> None:
        """Raises StreamsFailed if a stream has failed."""
        if self.failed:
            raise StreamsFailed(self.failed)
