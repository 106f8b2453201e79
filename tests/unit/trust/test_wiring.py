"""Which table of which database a file names, and that its secrets stay hidden."""

from pathlib import Path

import pytest

from ch_sink import snapshot
from ch_sink.config import load, load_job
from ch_sink.errors import ConfigError
from ch_sink.model.values import SourceTable
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


@pytest.mark.parametrize(
    ("topic", "names", "wanted"),
    [
        ("srv.dbo.Order_Details", [SourceTable("shop", "dbo", "Order Details")], ("dbo", "Order Details")),
        ("srv.dbo.caf_", [SourceTable("shop", "dbo", "café")], ("dbo", "café")),
        ("srv.dbo.__", [SourceTable("shop", "dbo", "🦀")], ("dbo", "🦀")),
        ("srv.public.a.b", [SourceTable("shop", "public", "a.b")], ("public", "a.b")),
        ("srv.public.order_items", [SourceTable("shop", "public", "order_items")], ("public", "order_items")),
        # A router has merged partitions or shards into a topic that has the name of the whole.
        ("srv.public.all_orders", [SourceTable("shop", "public", "orders_1")], ("public", "all_orders")),
        ("srv.public.a_b", [SourceTable("", "public", "a b"), SourceTable("", "public", "a$b")], ("public", "a_b")),
        ("srv.public.a_b", [], ("public", "a_b")),
    ],
)
def test_a_table_whose_name_no_topic_may_have_is_the_one_that_events_name(
    tmp_path: Path, topic: str, names: list[SourceTable], wanted: tuple[str, str]
) -> None:
    path = tmp_path / "orders.yaml"
    path.write_text(FILE.format(url="postgresql://h/shop", topic=topic, more=""))
    found = source_address(load(path, environ={}), lambda: names)
    assert (found.schema, found.table) == wanted


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
    monkeypatch.setattr(snapshot, "find_spec", lambda name: None)
    with pytest.raises(ConfigError) as refused:
        snapshot.open_source(address(tmp_path, url))
    assert f"pip install 'ch-sink[{extra}]'" in str(refused.value.hint)


SPLIT = """\
kafka: {{topics: [{topic}], bootstrap.servers: "localhost:9092"}}
clickhouse: {{url: "http://localhost:8123", database: shop, table: "{{table}}"}}
source: {{url: "{url}"{more}}}
"""
ORDERS = SourceTable("shop", "public", "orders")


def split_address(
    folder: Path, names: SourceTable, url: str = "postgresql://h/shop", more: str = "", topic: str = "shop_all"
) -> tuple[str, str]:
    path = folder / "shop.yaml"
    path.write_text(SPLIT.format(url=url, topic=topic, more=more) + ("split: true\n" if "." in topic else ""))
    found = source_address(load_job(path, environ={}).variant(topic).bind(topic, names))
    return found.schema, found.table


@pytest.mark.parametrize(
    ("url", "more", "names", "wanted"),
    [
        ("postgresql://h/shop", "", ORDERS, ("public", "orders")),
        ("postgresql://h/shop", "", SourceTable("shop", "public", "users"), ("public", "users")),
        ("postgresql://h/shop", "", SourceTable("shop", "public", "a.b"), ("public", "a.b")),
        ("postgresql://h/copy", "", ORDERS, ("public", "orders")),
        ("sqlserver://h/dbo", "", SourceTable("", "dbo", "orders"), ("dbo", "orders")),
        ("mysql://h", "", SourceTable("shop", "", "orders"), ("shop", "orders")),
        ("mongodb://h", "", SourceTable("shop", "", "users.old"), ("shop", "users.old")),
        ("postgresql://h/shop", ', table: "public.{table}"', SourceTable("", "", "orders"), ("public", "orders")),
        ("postgresql://h/shop", ", table: public.orders", ORDERS, ("public", "orders")),
    ],
)
@pytest.mark.parametrize("topic", ["shop_all", "srv.public.all"])
def test_each_stream_of_a_topic_of_several_tables_has_its_own(
    tmp_path: Path, url: str, more: str, names: SourceTable, wanted: tuple[str, str], topic: str
) -> None:
    assert split_address(tmp_path, names, url, more, topic) == wanted


def test_streams_of_one_topic_do_not_share_a_source_table(tmp_path: Path) -> None:
    """`resync` of users would fill the table from the orders, where the columns fit."""
    with pytest.raises(
        ConfigError, match=r"source\.table is public\.orders, and stream .* carries shop\.public\.users"
    ):
        split_address(tmp_path, SourceTable("shop", "public", "users"), more=", table: public.orders")


def test_a_stream_of_another_database_of_the_server_is_refused(tmp_path: Path) -> None:
    """A connector of SQL Server may read several; each is an address of its own."""
    names = SourceTable("db2", "dbo", "orders")
    with pytest.raises(ConfigError, match=r"source\.url names database db1, and stream .* carries db2\.dbo\.orders"):
        split_address(tmp_path, names, "sqlserver://h/db1")
    assert split_address(tmp_path, names, "sqlserver://h/DB2") == ("dbo", "orders")


def test_a_topic_of_a_table_of_another_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "orders.yaml"
    path.write_text(FILE.format(url="sqlserver://h/shop1", topic="srv.shop2.dbo.orders", more=""))
    with pytest.raises(ConfigError, match=r"names database shop1, and stream .* carries shop2\.dbo\.orders"):
        source_address(load(path, environ={}), lambda: [SourceTable("shop2", "dbo", "orders")])
    assert source_address(load(path, environ={}), lambda: [SourceTable("SHOP1", "dbo", "orders")]).table == "orders"


def test_a_schema_that_no_event_states_is_not_guessed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="source table orders of topic shop_all is named without its schema"):
        split_address(tmp_path, SourceTable("", "", "orders"))


@pytest.mark.parametrize(
    ("topic", "source_table", "more", "wanted"),
    [
        ("shop_all", "sales.orders", "", ("sales", "orders")),
        ("srv.sales.orders", "orders", "", ("sales", "orders")),
        ("shop_all", "sales.orders", ", table: sales.orders_view", ("sales", "orders_view")),
    ],
)
def test_a_stream_of_one_table_of_a_topic_reads_that_one(
    tmp_path: Path, topic: str, source_table: str, more: str, wanted: tuple[str, str]
) -> None:
    path = tmp_path / "orders.yaml"
    path.write_text(FILE.format(url="postgresql://h/shop", topic=topic, more=more) + f"source_table: {source_table}\n")
    found = source_address(load(path, environ={}))
    assert (found.schema, found.table) == wanted


def test_options_of_a_url_are_kept_or_refused(tmp_path: Path) -> None:
    assert address(tmp_path, "postgresql://u:hunter2@h/shop?sslmode=verify-full").url.endswith("?sslmode=verify-full")
    for url in ("postgresql://h/shop?ssl=true", "mysql://h/shop?useSSL=true&ssl_ca=x", "mariadb://h/shop?sslmode"):
        with pytest.raises(ConfigError, match="which is not known"):
            address(tmp_path, url)
