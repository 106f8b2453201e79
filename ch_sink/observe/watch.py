"""Where whoever shows a job finds its pictures, from before the job exists."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from ch_sink.observe.picture import JobPicture

__all__ = ["JobWatch"]


@dataclass(slots=True)
class JobWatch:
    """Whoever starts the job says what it does until ``source`` can be asked."""

    doing: str = ""
    source: Callable[[], JobPicture] | None = None

    def look(self) -> JobPicture:
        """The job now."""
        return self.source() if self.source is not None else JobPicture((), time.monotonic(), self.doing)
