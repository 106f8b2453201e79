"""A number with its noun."""

__all__ = ["counted", "grouped"]


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 row``, ``12 000 rows``; ``plural`` where an s is not enough."""
    return f"{grouped(number)} {noun if number == 1 else plural or noun + 's'}"


def grouped(number: int) -> str:
    """The number with grouped thousands: ``12 000``."""
    return f"{number:,}".replace(",", " ")
