"""The values of many datums, one vector for each field, whichever reader has read them."""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Mask = npt.NDArray[np.bool_]
_ARROW = {
    "int": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "enum": pa.string(),
}


class NotText(ValueError):
    """The bytes of a text are not UTF-8; ``places``: the datums with such texts."""

    def __init__(self, places: list[int]) -> None:
        super().__init__("a text is not UTF-8")
        self.places = places


class Vector(ABC):
    """One value for each datum. ``valid``: which datums have one; None for all."""

    def __init__(self, count: int, valid: Mask | None) -> None:
        self.count, self.valid = count, valid

    def present(self) -> Mask:
        """Which datums have a value."""
        return np.ones(self.count, dtype=np.bool_) if self.valid is None else self.valid

    def only(self, where: Mask) -> None:
        """Drop the values of all other datums."""
        self.valid = where & self.present()

    @abstractmethod
    def column(self) -> Any:
        """The values as an Arrow array, or a list if they have no Arrow type of their own. Raises NotText."""

    def tolist(self) -> list[Any]:
        """The values as Python objects. Raises NotText."""
        found = self.column()
        return found if isinstance(found, list) else list(found.to_pylist())

    def numbers(self) -> npt.NDArray[np.int64] | None:
        """The values as integers, 0 for a missing one; None if they are not integers."""
        return None

    def letters(self) -> npt.NDArray[np.uint8] | None:
        """The octets of texts of one letter each; None if they may be others."""
        return None

    def repeated(self) -> list[Any] | None:
        """Texts, one object for each distinct one; None if there are many, or one is not UTF-8."""
        return None


class Struct(Vector):
    """Records, as a vector for each field."""

    def __init__(self, count: int, valid: Mask | None, fields: dict[str, Vector]) -> None:
        super().__init__(count, valid)
        self.fields = fields

    def only(self, where: Mask) -> None:
        super().only(where)
        for vector in self.fields.values():
            vector.only(where)

    def column(self) -> list[Any]:
        names, there = list(self.fields), self.present().tolist()
        columns = [vector.tolist() for vector in self.fields.values()]
        rows = zip(*columns, strict=True) if columns else [()] * self.count
        return [dict(zip(names, row, strict=True)) if one else None for row, one in zip(rows, there, strict=True)]


class Values(Vector):
    """Python objects of one kind of type, None for a missing one; texts as their bytes."""

    def __init__(self, kind: str, values: list[Any]) -> None:
        super().__init__(len(values), where_present(values))
        self._kind, self._values = kind, values

    def only(self, where: Mask) -> None:
        super().only(where)
        self._values = [value if one else None for value, one in zip(self._values, where.tolist(), strict=True)]

    def column(self) -> Any:
        if self._kind == "string":
            return as_text(pa.array(self._values, pa.binary()))
        kind = _ARROW.get(self._kind)
        return self._values if kind is None else pa.array(self._values, kind)

    def numbers(self) -> npt.NDArray[np.int64] | None:
        if self._kind not in ("int", "long"):
            return None
        return np.array([value or 0 for value in self._values], dtype=np.int64)


def as_text(array: pa.Array) -> pa.Array:
    """An array of bytes as texts. Raises NotText."""
    try:
        return array.cast(pa.string())
    except pa.ArrowInvalid:
        odd = [i for i, one in enumerate(array.to_pylist()) if one is not None and not _is_utf8(one)]
        raise NotText(odd) from None


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def where_present(values: list[Any]) -> Mask | None:
    """Which values are not None; None for all."""
    there = [value is not None for value in values]
    return None if all(there) else np.array(there, dtype=np.bool_)
