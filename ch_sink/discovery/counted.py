"""Numbers of things in words: 1 column, 2 columns."""

__all__ = ["counted"]


def counted(number: int, thing: str, *, many: str = "") -> str:
    """The number with its noun; ``many`` is the plural where it is more than an s."""
    return f"{number} {thing if number == 1 else many or thing + 's'}"
