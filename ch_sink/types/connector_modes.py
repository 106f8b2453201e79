"""What the connector's own settings say where neither schema nor comment does, and binary columns sent as text."""

import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ch_sink.errors import DecodeError
from ch_sink.types.chtype import ChType
from ch_sink.types.converter import Converted, Converter, shown
from ch_sink.types.value_policy import ValuePolicy

__all__ = ["Encoded", "Modes"]

_TICKS = {"connect": 3, "microseconds": 6, "nanoseconds": 9}


@dataclass(frozen=True, slots=True)
class Modes:
    """``decimal.handling.mode``, ``binary.handling.mode`` and ``time.precision.mode`` of the connector."""

    decimal: str = "precise"
    binary: str = "bytes"
    time: str = "adaptive"

    @staticmethod
    def of(policy: ValuePolicy) -> "Modes":
        return Modes(policy.decimal_handling, policy.binary_handling, policy.time_precision)

    def tick_digits(self, target: ChType) -> int:
        """Sub-second digits of the integers for a date-time or time column.

        The adaptive modes send milliseconds for columns of up to three digits, then micro- and nanoseconds.
        """
        if self.time == "adaptive_time_microseconds" and target.name in ("Time", "Time64"):
            return 6
        adaptive = 3 if target.precision <= 3 else 6 if target.precision <= 6 else 9
        return _TICKS.get(self.time, adaptive)


class Encoded:
    """Bytes that the connector wrote as text: decoded, then converted."""

    wire: Any = str

    def __init__(self, inner: Converter, mode: str) -> None:
        self.arrow = inner.arrow
        self._inner = inner
        self._decode = _DECODERS[mode]
        self._mode = mode

    def convert(self, values: list[Any]) -> Converted:
        try:
            return self._inner.convert([None if v is None else self._decode(v) for v in values])
        except (binascii.Error, ValueError, TypeError) as fault:
            text = next((v for v in values if v is not None and not self._reads(v)), None)
            raise DecodeError(f"no {self._mode} text: {shown(text)}", hint="see binary_handling") from fault

    def _reads(self, value: Any) -> bool:
        try:
            self._decode(value)
        except (binascii.Error, ValueError, TypeError):
            return False
        return True


_DECODERS: dict[str, Callable[[Any], bytes]] = {
    "base64": lambda text: binascii.a2b_base64(text, strict_mode=True),
    "base64-url-safe": lambda text: base64.b64decode(text, altchars=b"-_", validate=True),
    "hex": bytes.fromhex,
}
