"""``column.propagate.source.type``: the column's own type, length and scale stand in the schema's parameters."""

from typing import Any

from tests.unit.types.type_cases.case import (
    CONNECT,
    TIME,
    Case,
    b64,
    connect_decimal,
    exact,
    field,
    plain,
    texts,
)

_MARK = "__debezium__dot__source__dot__column__dot__"


def told(
    kind: str, name: str | None, source: str, length: int = 0, scale: int | None = None, **more: Any
) -> dict[str, Any]:
    """A field whose schema tells the source column's type."""
    parameters: dict[str, Any] = {_MARK + "type": source}
    if length:
        parameters[_MARK + "length"] = length
    if scale is not None:
        parameters[_MARK + "scale"] = scale
    return field(kind, name, **parameters, **more)


def number_text(what: str, source: str, precision: int, scale: int, *values: str) -> Case:
    """A number that the connector sends as its text."""
    column = f"Nullable(Decimal({precision}, {scale}))"
    pairs = tuple((v, plain(v)) for v in values)
    schema = told("string", None, source, precision, scale)
    return Case(f"{what}, string", schema, column, pairs, untold="a text into Decimal is taken for base64")


_UUID = "6f9619ff-8b86-d011-b42d-00c04fc964ff"

CASES: list[Case] = [
    exact("TINYINT UNSIGNED", told("int16", None, "TINYINT UNSIGNED"), "Nullable(UInt8)", 0, 255),
    exact("SMALLINT UNSIGNED", told("int32", None, "SMALLINT UNSIGNED", 5), "Nullable(UInt16)", 0, 65535),
    exact("MEDIUMINT UNSIGNED", told("int32", None, "MEDIUMINT UNSIGNED"), "Nullable(UInt32)", 0, 2**24 - 1),
    exact("INT UNSIGNED", told("int64", None, "INT UNSIGNED"), "Nullable(UInt32)", 0, 2**32 - 1),
    exact(
        "INT(10) UNSIGNED ZEROFILL", told("int64", None, "INT(10) UNSIGNED ZEROFILL"), "Nullable(UInt32)", 0, 2**32 - 1
    ),
    Case(
        "BIGINT UNSIGNED, long",
        told("int64", None, "BIGINT UNSIGNED"),
        "Nullable(UInt64)",
        ((0, "0"), (2**63 - 1, str(2**63 - 1)), (-1, str(2**64 - 1)), (-(2**63), str(2**63))),
    ),
    Case(
        "BIGINT UNSIGNED, precise",
        told("bytes", CONNECT + "Decimal", "BIGINT UNSIGNED", 20, 0)
        | {"parameters": {"__debezium.source.column.type": "BIGINT UNSIGNED", "scale": "0"}},
        "Nullable(UInt64)",
        ((connect_decimal(str(2**64 - 1), 0), str(2**64 - 1)), (connect_decimal("0", 0), "0")),
        untold="a bytes literal for UInt64 is read as BIT",
    ),
    exact("BIGINT", told("int64", None, "BIGINT"), "Nullable(Int64)", -(2**63), 2**63 - 1),
    exact("YEAR", told("int32", TIME + "Year", "YEAR", 4), "Nullable(UInt16)", 1901, 2155),
    exact("YEAR without its name", told("int32", None, "YEAR"), "Nullable(UInt16)", 0, 2155),
    Case(
        "MONEY, precise, length and scale told",
        told("bytes", CONNECT + "Decimal", "MONEY", 19, 4)
        | {
            "parameters": {
                "__debezium.source.column.type": "money",
                "__debezium.source.column.length": "19",
                "__debezium.source.column.scale": "4",
                "scale": "4",
            }
        },
        "Nullable(Decimal(19, 4))",
        ((connect_decimal("-922337203685477.5808", 4), "-922337203685477.5808"),),
    ),
    number_text("DECIMAL(10,2)", "DECIMAL", 10, 2, "12345678.90", "-0.01", "0.00"),
    number_text("DECIMAL(65,30) UNSIGNED", "DECIMAL UNSIGNED", 65, 30, "9" * 35 + "." + "9" * 30),
    number_text("NUMERIC(5)", "NUMERIC", 5, 0, "99999", "-1"),
    number_text("MONEY", "money", 19, 4, "922337203685477.5807"),
    texts("NUMERIC without precision, string", told("string", None, "NUMERIC"), "Nullable(String)", "1.50", "NaN"),
    texts("NUMERIC(100,2), string", told("string", None, "NUMERIC", 100, 2), "Nullable(String)", "9" * 98 + ".00"),
    Case(
        "UNIQUEIDENTIFIER",
        told("string", None, "uniqueidentifier", 36),
        "Nullable(UUID)",
        ((_UUID.upper(), _UUID), (_UUID, _UUID)),
    ),
    Case("UUID of MariaDB", told("string", None, "UUID"), "Nullable(UUID)", ((_UUID, _UUID),)),
    Case(
        "DATETIMEOFFSET(7)",
        told("string", TIME + "ZonedTimestamp", "datetimeoffset", 34, 7),
        "Nullable(DateTime64(7, 'UTC'))",
        (("2018-07-18T13:14:15Z", "2018-07-18 13:14:15.0000000"),),
    ),
    Case(
        "DATETIMEOFFSET(3)",
        told("string", TIME + "ZonedTimestamp", "datetimeoffset", 30, 3),
        "Nullable(DateTime64(6, 'UTC'))",
        (("2018-07-18T13:14:15.123Z", "2018-07-18 13:14:15.123000"),),
    ),
    texts("VARCHAR(20)", told("string", None, "VARCHAR", 20), "Nullable(String)", "x"),
    Case(
        "VARBINARY(20)", told("bytes", None, "VARBINARY", 20), "Nullable(String)", ((b64(b"\xff"), b"\xff"),), "base64"
    ),
]
