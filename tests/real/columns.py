"""Columns of the table ``wide``: type and literals, by source.

Left out is what the connector itself changes (tests/support/recorded.py names it), and what a sampled stream cannot
tell.
"""

_TIMES = ("'00:00:00'", "'12:34:56.789012'", "'23:59:59.999999'")
_MOMENTS = ("'1970-01-01 00:00:00'", "'2024-02-29 12:34:56.789012'", "'1999-12-31 23:59:59.9'", "'2299-12-31 00:00:00'")
_SIGNED = ("0", "-1", "1", "127", "-128")
_TEXTS = ("''", "'x'", "'l''été 漢字 🦀'", "'tab\tand\nline'", "'\"q\" \\ {} [] null'", "' pad '")
_JSON = ('\'{"k": [1, 2.50, null, "é"]}\'', "'[]'", '\'{"a": {"b": "\\u00e9\\n"}}\'')

WIDE: dict[str, dict[str, tuple[str, tuple[str, ...]]]] = {
    "mariadb": {
        "c_ti": ("TINYINT", _SIGNED),
        "c_uti": ("TINYINT UNSIGNED", ("0", "255")),
        "c_bool": ("BOOLEAN", ("TRUE", "FALSE")),
        "c_usi": ("SMALLINT UNSIGNED", ("0", "65535")),
        "c_mi": ("MEDIUMINT", ("8388607", "-8388608")),
        "c_ui": ("INT UNSIGNED", ("0", "4294967295")),
        "c_bi": ("BIGINT", ("9223372036854775807", "-9223372036854775808", *_SIGNED)),
        "c_ubi": ("BIGINT UNSIGNED", ("0", "9223372036854775808", "18446744073709551615")),
        "c_dec": ("DECIMAL(20,4)", ("0", "-0.0001", "9999999999999999.9999")),
        "c_big": ("DECIMAL(65,30)", ("0.000000000000000000000000000001", "-12345678901234567890.5")),
        "c_float": ("FLOAT", ("0.1", "-1.5e30", "3.4028e38")),
        "c_double": ("DOUBLE", ("0.1", "-1.7976931348623157e308", "5e-324")),
        "c_date": ("DATE", ("'1970-01-01'", "'2024-02-29'", "'1900-01-01'", "'2299-12-31'")),
        "c_time": ("TIME(6)", (*_TIMES, "'-838:59:59'", "'838:59:59'")),
        "c_time0": ("TIME", ("'00:00:00'", "'-01:00:00'")),
        "c_dt6": ("DATETIME(6)", _MOMENTS),
        "c_dt3": ("DATETIME(3)", ("'2024-02-29 12:34:56.789'", "'1970-01-01 00:00:00'")),
        "c_dt0": ("DATETIME", ("'2024-02-29 12:34:56'",)),
        "c_ts": ("TIMESTAMP(6) NULL", ("'2024-02-29 12:34:56.789012'", "'2038-01-19 03:14:07'")),
        "c_year": ("YEAR", ("1901", "2155")),
        "c_enum": ("ENUM('a','b','l''x')", ("'a'", "'b'", "'l''x'")),
        "c_set": ("SET('x','y','z')", ("''", "'x'", "'x,z'")),
        "c_json": ("JSON", _JSON),
        "c_bit1": ("BIT(1)", ("b'0'", "b'1'")),
        "c_bit": ("BIT(12)", ("b'0'", "b'100000000001'")),
        "c_bin": ("BINARY(4)", ("x'00ff0080'", "x'01'")),
        "c_vbin": ("VARBINARY(32)", ("x''", "x'00ff80'")),
        "c_blob": ("BLOB", ("x''", "x'deadbeef00'")),
        "c_char": ("CHAR(8)", ("''", "'x'", "'é'")),
        "c_vc": ("VARCHAR(40)", _TEXTS),
        "c_def": ("VARCHAR(10) DEFAULT 'dflt'", ("'x'",)),
        "c_int": ("INT DEFAULT 5", ("0", "6")),
        "c_must": ("INT NOT NULL DEFAULT 5", ("0", "6")),
    },
    "postgres": {
        "c_bool": ("BOOLEAN", ("TRUE", "FALSE")),
        "c_si": ("SMALLINT", ("32767", *_SIGNED)),
        "c_bi": ("BIGINT", ("9223372036854775807", "-9223372036854775808", *_SIGNED)),
        "c_real": ("REAL", ("0.1", "'NaN'", "'-Infinity'", "3.4028e38")),
        "c_double": ("DOUBLE PRECISION", ("0.1", "'NaN'", "'Infinity'", "1.7976931348623157e308")),
        "c_dec": ("NUMERIC(20,4)", ("0", "-0.0001", "9999999999999999.9999")),
        "c_num": ("NUMERIC", ("0", "12345678901234567890.123456789", "-0.5", "100")),
        "c_date": ("DATE", ("'1970-01-01'", "'2024-02-29'", "'1900-01-01'", "'2299-12-31'")),
        "c_time": ("TIME", (*_TIMES, "'24:00:00'")),
        "c_time3": ("TIME(3)", ("'12:34:56.789'",)),
        "c_ts": ("TIMESTAMP", _MOMENTS),
        "c_ts3": ("TIMESTAMP(3)", ("'2024-02-29 12:34:56.789'",)),
        "c_tstz": ("TIMESTAMPTZ", ("'2024-02-29 12:34:56.789012+05:30'", "'1970-01-01 00:00:00Z'")),
        "c_uuid": ("UUID", ("'123e4567-e89b-12d3-a456-426614174000'", "'00000000-0000-0000-0000-000000000000'")),
        "c_json": ("JSON", _JSON),
        "c_jsonb": ("JSONB", _JSON),
        "c_bytea": ("BYTEA", ("'\\x'", "'\\x00ff80'")),
        "c_ia": ("INT[]", ("'{}'", "'{1,NULL,-3}'")),
        "c_ta": ("TEXT[]", ("'{}'", "ARRAY['a,b', 'q\"', NULL, '']")),
        "c_na": ("NUMERIC(10,2)[]", ("'{1.50,NULL,-0.01}'",)),
        "c_char": ("CHAR(5)", ("'x'", "'é'")),
        "c_vc": ("VARCHAR(40)", _TEXTS),
        "c_text": ("TEXT", _TEXTS),
        "c_bit": ("BIT(12)", ("B'000000000011'", "B'100000000001'")),
        "c_inet": ("INET", ("'10.0.0.1'", "'::1'", "'10.0.0.0/8'")),
        "c_point": ("POINT", ("'(1.5,-2)'", "'(0,0)'")),
        "c_range": ("INT4RANGE", ("'[1,5)'", "'empty'")),
        "c_xml": ("XML", ("'<a b=\"1\">é</a>'",)),
        "c_def": ("VARCHAR(10) DEFAULT 'dflt'", ("'x'",)),
        "c_int": ("INT DEFAULT 5", ("0", "6")),
        "c_must": ("INT NOT NULL DEFAULT 5", ("0", "6")),
    },
}
