"""ClickHouse's exceptions over HTTP: the code inside the text, and the status that the server gives to it.

The table is the server's own (src/Server/HTTP/exceptionCodeToHTTPStatus.cpp).
"""

from __future__ import annotations

import re

__all__ = ["QueryError", "code_of", "status_of"]

_CODE = re.compile(r"Code: (\d+)\.")
_CHDB_PREFIX = re.compile(r"^(?:Streaming [\w ]+ failed: |Streaming query failed: )+")

# BAD_ARGUMENTS, CANNOT_PARSE_*, SYNTAX_ERROR, TYPE_MISMATCH, INCORRECT_DATA, …: the request is at fault.
_BAD_REQUEST = (
    6,
    8,
    15,
    25,
    26,
    27,
    36,
    37,
    38,
    41,
    44,
    53,
    62,
    72,
    117,
    123,
    167,
    168,
    223,
    321,
    376,
    427,
    441,
    675,
    676,
)
# UNKNOWN_FUNCTION, _IDENTIFIER, _TYPE, _STORAGE, _TABLE, _AGGREGATE_FUNCTION, _FORMAT, _TYPE_OF_QUERY, _DATABASE,
# _SETTING, _DIRECTION_OF_SORTING, _DATABASE_ENGINE, _ROLE
_NOT_FOUND = (46, 47, 50, 56, 60, 63, 73, 78, 81, 115, 152, 336, 511)
_STATUS = {
    **dict.fromkeys(_BAD_REQUEST, 400),
    194: 401,  # REQUIRED_PASSWORD
    **dict.fromkeys((192, 193, 497, 512, 516), 403),  # UNKNOWN_USER, WRONG_PASSWORD, ACCESS_DENIED, …
    **dict.fromkeys(_NOT_FOUND, 404),
    159: 408,  # TIMEOUT_EXCEEDED
    381: 411,  # HTTP_LENGTH_REQUIRED
    229: 413,  # QUERY_IS_TOO_LARGE
    779: 415,  # UNSUPPORTED_MEDIA_TYPE
    48: 501,  # NOT_IMPLEMENTED
    **dict.fromkeys((76, 209, 439), 503),  # CANNOT_OPEN_FILE, SOCKET_TIMEOUT, CANNOT_SCHEDULE_TASK
}


class QueryError(Exception):
    """A request that ends in a ClickHouse exception. ``code`` is ClickHouse's number, ``str()`` the server's text."""

    def __init__(self, code: int, text: str, *, status: int | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.status = status if status is not None else status_of(code)

    @classmethod
    def make(cls, code: int, name: str, text: str) -> QueryError:
        """An exception of this endpoint, in the shape that the engine gives to its own."""
        return cls(code, f"Code: {code}. DB::Exception: {text} ({name})")

    @classmethod
    def from_engine(cls, error: BaseException) -> QueryError:
        """The engine's exception as it came out of chDB."""
        text = _CHDB_PREFIX.sub("", str(error)).strip()
        at = text.find("Code: ")
        text = text[at:] if at > 0 else text
        code = code_of(text)
        if code == 0:
            return cls.make(1001, "STD_EXCEPTION", text or type(error).__name__)
        return cls(code, text)


def code_of(text: str) -> int:
    """The first exception code in the text, or 0."""
    found = _CODE.search(text)
    return int(found.group(1)) if found else 0


def status_of(code: int) -> int:
    """The HTTP status that ClickHouse answers with for an exception code."""
    return _STATUS.get(code, 500)
