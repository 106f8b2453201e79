"""SQL Server's types: how columns are described, and how the server is asked to write their values.

The server converts the values, so that no driver rounds seven fractional digits to six, or money to a float.
"""

__all__ = ["read_as", "type_text"]

_WRITTEN = {
    "bit": "CONVERT(varchar(1), {})",
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), "CONVERT(varchar(20), {})"),
    # Style 3 distinguishes every two numbers.
    **dict.fromkeys(("real", "float"), "CONVERT(varchar(32), {}, 3)"),
    **dict.fromkeys(("decimal", "numeric"), "CONVERT(varchar(42), {})"),
    # Style 2 has all four digits after the point, and no commas.
    **dict.fromkeys(("money", "smallmoney"), "CONVERT(varchar(30), {}, 2)"),
    "date": "CONVERT(varchar(10), {}, 23)",
    **dict.fromkeys(("datetime", "smalldatetime", "datetime2"), "CONVERT(varchar(27), {}, 121)"),
    "time": "CONVERT(varchar(16), {}, 121)",
    "datetimeoffset": "CONVERT(varchar(34), SWITCHOFFSET({}, '+00:00'), 126)",
    "uniqueidentifier": "CONVERT(varchar(36), {})",
    **dict.fromkeys(("binary", "varbinary", "image", "rowversion", "hierarchyid"), "CONVERT(varbinary(max), {})"),
}
_WITH_LENGTH = {"char": 1, "varchar": 1, "binary": 1, "varbinary": 1, "nchar": 2, "nvarchar": 2}
"""Bytes of a character."""
_WITH_DIGITS = ("time", "datetime2", "datetimeoffset")


def type_text(name: str, max_length: int, precision: int, scale: int, computed: bool | int) -> str:
    """A type as one declares it, from its row in ``sys.columns``: ``decimal(12,2)``, ``nvarchar(max)``.

    Computed columns are ``computed …``: change data capture records no values of theirs. What SQL Server calls
    ``timestamp`` is no time, and has its other name.
    """
    text = "rowversion" if name == "timestamp" else name
    if name in ("decimal", "numeric"):
        text = f"{name}({precision},{scale})"
    elif name in _WITH_LENGTH:
        text = f"{name}({'max' if max_length < 0 else max_length // _WITH_LENGTH[name]})"
    elif name in ("real", "float"):
        text = f"{name}({precision})"
    elif name in _WITH_DIGITS:
        text = f"{name}({scale})"
    elif name in ("geometry", "geography"):
        text = f"clr {name}"
    return f"computed {text}" if computed else text


def read_as(kind: str, name: str) -> str:
    """SQL for a column's value as text or bytes. ``name``: quoted."""
    written = _WRITTEN.get(kind.partition("(")[0], "CONVERT(nvarchar(max), {})")
    return f"{written.replace('{}', name)} AS {name}"
