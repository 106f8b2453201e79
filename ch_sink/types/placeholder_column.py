"""The unavailable-value placeholder in columns whose type is no text, filled from a source's text or bytes."""

from collections.abc import Callable
from typing import Any

from ch_sink.types.converter import Converted, Converter, masked

__all__ = ["PlaceholderColumn"]


class PlaceholderColumn:
    """Literals by another converter, placeholders as null and marked."""

    def __init__(self, inner: Converter, is_placeholder: Callable[[Any], bool]) -> None:
        self.wire: Any = inner.wire
        self.arrow = inner.arrow
        self._inner = inner
        self._is_placeholder = is_placeholder

    def convert(self, values: list[Any]) -> Converted:
        check = self._is_placeholder
        places = [i for i, value in enumerate(values) if value is not None and check(value)]
        if not places:
            return self._inner.convert(values)
        gone = set(places)
        found = self._inner.convert([None if i in gone else value for i, value in enumerate(values)])
        return Converted(found.array, masked(len(values), places), found.clamped)
