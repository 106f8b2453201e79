"""What a long command is doing, and how much of that is done."""

from typing import Self


class Step(str):
    """A line of progress that the next one replaces. ``share``: how much is done, 0 to 1; None if unknown."""

    share: float | None

    def __new__(cls, text: str, share: float | None = None) -> Self:
        step = super().__new__(cls, text)
        step.share = None if share is None else min(max(share, 0.0), 1.0)
        return step
