"""Which table of which database a file names, and that its secrets stay hidden."""

from pathlib import Path

import pytest

from ch_sink.config import load
from ch_sink.errors import ConfigError
from ch_sink.snapshot import SourceAddress
from ch_sink.trust.wiring import source_address

FILE = """\
kafka: {{topic: {topic}, bootstrap.servers: "localhost:9092"}}
clickhouse: {{url: "http://localhost:8123", database: shop, table: orders}}
source: {{url: "{url}"{more}}}
"""


def address(folder: Path, url: str, topic: str = "my.prefix.shop.dbo.orders", more: str = "") -> SourceAddress:
    path = folder / "orders.yaml"
    path.write_text(FILE.format(url=url, topic=topic, more=more))
    config = load(path, environ={})
    assert "hunter2" not in config.model_dump_json()
    found = source_address(config)
    assert "hunter2" not in repr(found)
    assert "hunter2" not in found.url
    return found


@pytest.mark.parametrize(
    ("url", "more", "wanted"),
    [
        ("postgresql://h/shop", "", ("postgresql", "h", 5432, "shop", "dbo", "orders")),
        ("postgresql://h/shop", ", table: t", ("postgresql", "h", 5432, "shop", "public", "t")),
        ("mariadb://u:hunter2@h:3307/shop", ", table: t", ("mysql", "h", 3307, "shop", "shop", "t")),
        ("sqlserver://u:hunter2@h/shop", "", ("sqlserver", "h", 1433, "shop", "dbo", "orders")),
        ("mssql://h:1434/shop", ", table: sales.t", ("sqlserver", "h", 1434, "shop", "sales", "t")),
        ("mssql://h/shop", ", table: t", ("sqlserver", "h", 1433, "shop", "dbo", "t")),
        ("mongodb://u:hunter2@h", ", table: inventory.a.b", ("mongodb", "h", 27017, "", "inventory", "a.b")),
        ("mongodb://h/inventory", ", table: t", ("mongodb", "h", 27017, "inventory", "inventory", "t")),
        ("mongodb+srv://h/?authSource=admin", "", ("mongodb", "h", 27017, "", "dbo", "orders")),
        ("mongodb://u:hunter2@a:1,b:2/?replicaSet=rs", "", ("mongodb", "a:1,b:2", 0, "", "dbo", "orders")),
    ],
)
def test_a_table_is_named_by_the_file_or_by_the_topic(
    tmp_path: Path, url: str, more: str, wanted: tuple[object, ...]
) -> None:
    found = address(tmp_path, url, more=more)
    assert (found.kind, found.host, found.port, found.database, found.schema, found.table) == wanted


def test_a_connection_string_keeps_its_options_and_loses_its_user(tmp_path: Path) -> None:
    found = address(tmp_path, "mongodb://u:hunter2@a:1,b:2/?replicaSet=rs&authSource=admin")
    assert found.url == "mongodb://a:1,b:2/?replicaSet=rs&authSource=admin"
    assert (found.username, found.password) == ("u", "hunter2")
    assert found.shown == "dbo.orders at a:1,b:2"


@pytest.mark.parametrize(
    ("url", "more", "said"),
    [
        ("sqlserver://h", "", "names no database"),
        ("mongodb://h", ", table: t", "source.table names no database"),
        ("oracle://h/shop", "", "must be the address of a database"),
        ("postgresql://a:1,b:2/shop", "", "must be the address of a database"),
        ("mongodb://h/?tls=true&tlsCertificateKeyFilePassword=hunter2", "", "must not have a password"),
    ],
)
def test_what_cannot_be_an_address_is_refused(tmp_path: Path, url: str, more: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        address(tmp_path, url, more=more)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(("url", "extra"), [("mssql://h/shop", "sqlserver"), ("mongodb://h/shop", "mongodb")])
def test_a_driver_that_is_not_installed_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str, extra: str
) -> None:
    from ch_sink.snapshot import connect

    monkeypatch.setattr(connect, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as refused:
        connect.open_source(address(tmp_path, url))
    assert f"pip install 'ch-sink[{extra}]'" in str(refused.value.hint)
