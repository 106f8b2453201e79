"""Types of other connectors and of Connect itself: whatever a schema may declare."""

from tests.unit.types.type_cases.case import (
    CONNECT,
    DATA,
    TIME,
    Case,
    Raw,
    array,
    b64,
    connect_decimal,
    exact,
    field,
    named,
)

CASES: list[Case] = [
    exact("INT8", field("int8"), "Nullable(Int8)", -128, 127),
    exact("INT16", field("int16"), "Nullable(Int16)", -1),
    exact("a name that nobody knows", field("int32", "com.example.Color"), "Nullable(Int32)", 7),
    exact("a text with a name that nobody knows", field("string", "com.example.Id"), "Nullable(String)", "x"),
    Case(
        "bytes with an unknown name",
        field("bytes", "com.example.B"),
        "Nullable(String)",
        ((b64(b"\xff"), b"\xff"),),
        "base64",
    ),
    Case("FLOAT32 whole", field("float"), "Nullable(Float32)", ((3, "3"), (Raw("3.0"), "3"), (Raw("1e2"), "100"))),
    Case("FLOAT64 whole", field("double"), "Nullable(Float64)", ((3, "3"), (Raw("3.0"), "3"), (Raw("1E2"), "100"))),
    Case(
        "Decimal of scale 0, wide",
        field("bytes", CONNECT + "Decimal", scale=0, connect__dot__decimal__dot__precision=76),
        "Nullable(Decimal(76, 0))",
        ((connect_decimal("9" * 76, 0), "9" * 76), (connect_decimal("-" + "9" * 76, 0), "-" + "9" * 76)),
    ),
    Case(
        "Decimal of negative scale",
        field("bytes", CONNECT + "Decimal", scale=-2, connect__dot__decimal__dot__precision=5),
        "Nullable(String)",
        ((connect_decimal("12300", -2), "12300"),),
        "base64 into String stays base64",
    ),
    Case(
        "Decimal, empty bytes", field("bytes", CONNECT + "Decimal", scale=2), "Nullable(Decimal(38, 2))", (("", "0"),)
    ),
    Case(
        "Decimal with bytes to spare",
        field("bytes", CONNECT + "Decimal", scale=2, connect__dot__decimal__dot__precision=9),
        "Nullable(Decimal(9, 2))",
        ((b64(b"\x00" * 20 + b"\x7b"), "1.23"), (b64(b"\xff" * 20 + b"\x85"), "-1.23")),
    ),
    Case("MicroDuration", field("int64", TIME + "MicroDuration"), "Nullable(Int64)", ((-(2**63), str(-(2**63))),)),
    Case("NanoDuration", field("int64", TIME + "NanoDuration"), "Nullable(Int64)", ((2**63 - 1, str(2**63 - 1)),)),
    Case(
        "a struct",
        named("com.example.Address", {"street": field("string"), "no": field("int32")}),
        "Nullable(String)",
        (
            ({"street": "é", "no": 1}, '{"street":"é","no":1}'),
            ({"street": None, "no": None}, '{"street":null,"no":null}'),
        ),
    ),
    Case(
        "an array of structs",
        array(named("com.example.Line", {"a": field("int32")})),
        "Nullable(Tuple(items Array(Nullable(String))))",
        (([{"a": 1}, None], "(['{\"a\":1}',NULL])"),),
    ),
    Case(
        "a map of integers to texts",
        field("map", keys=field("int32", optional=False), values=field("string")),
        "Nullable(Tuple(items Map(Int32, Nullable(String))))",
        (([[1, "a"], [-2, None]], "({1:'a',-2:NULL})"), ([], "({})")),
    ),
    Case(
        "a map of texts to integers",
        field("map", keys=field("string", optional=False), values=field("int64", optional=False)),
        "Nullable(Tuple(items Map(String, Int64)))",
        (({"a": 2**63 - 1}, f"({{'a':{2**63 - 1}}})"),),
    ),
    Case(
        "a map of texts to arrays",
        field("map", keys=field("string", optional=False), values=array(field("int32", optional=False))),
        "Nullable(Tuple(items Map(String, Array(Int32))))",
        (({"a": [1, 2], "b": []}, "({'a':[1,2],'b':[]})"),),
    ),
    Case(
        "a map NOT NULL",
        field("map", optional=False, keys=field("string", optional=False), values=field("string", optional=False)),
        "Map(String, String)",
        (({"a": "1"}, "{'a':'1'}"), ({}, "{}")),
    ),
    Case(
        "NanoTimestamp at its bounds",
        field("int64", TIME + "NanoTimestamp"),
        "Nullable(DateTime64(9, 'UTC'))",
        (
            (2**63 - 1, "2262-04-11 23:47:16.854775807"),
            (-(2**63), "1677-09-21 00:12:43.145224192"),
        ),
    ),
    Case(
        "Uuid in capitals",
        field("string", DATA + "Uuid"),
        "Nullable(UUID)",
        (("A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),),
    ),
]
