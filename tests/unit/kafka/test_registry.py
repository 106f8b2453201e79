"""The schema registry over HTTP: asked once, unknown ids told from failures, no secret in an error."""

from collections.abc import Iterator
from typing import Any

import pytest

from ch_sink.decode.avro.schema import parse
from ch_sink.errors import ConfigError, RegistryError, RegistryUnavailable
from ch_sink.kafka import schema_registry
from ch_sink.kafka.registry import ConfluentRegistry
from ch_sink.ports import RegisteredSchema
from tests.support.fixtures import registry_schemas
from tests.support.registry_server import RegistryServer, registry_server

QUICK = {"max.retries": "2", "retries.wait.ms": "1", "retries.max.wait.ms": "2", "timeout": "5"}


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry_server(registry_schemas("postgres")) as found:
        yield found


def client(server: RegistryServer, **more: str) -> ConfluentRegistry:
    return ConfluentRegistry({"url": server.url, **QUICK, **{k.replace("_", "."): v for k, v in more.items()}})


def test_a_schema_is_asked_for_once(server: RegistryServer) -> None:
    registry = client(server)
    held = registry_schemas("postgres")
    for _ in range(3):
        assert registry.find(2) == RegisteredSchema("AVRO", held[2]["schema"])
        assert registry.find(4) == RegisteredSchema("AVRO", held[4]["schema"])
    assert [path.partition("?")[0] for path in server.asked] == ["/schemas/ids/2", "/schemas/ids/4"]


def test_an_unknown_id_is_none_and_not_asked_for_again_at_once(server: RegistryServer) -> None:
    registry = client(server)
    assert registry.find(999) is None
    asked = len(server.asked)
    assert registry.find(999) is None
    assert len(server.asked) == asked == 2  # twice, for a replica that lags


def test_an_id_that_appears_within_the_second_look_is_found(server: RegistryServer) -> None:
    registry = client(server)
    answer = server.answer

    def late(path: str, authorization: str) -> tuple[int, Any]:
        found = answer(path, authorization)
        server.ids[7000] = server.ids[2]
        return found

    server.answer = late  # type: ignore[method-assign]
    found = registry.find(7000)
    assert found.text == server.ids[2]["schema"]


def test_references_are_resolved_in_the_order_in_which_they_need_each_other() -> None:
    money = '{"type":"record","name":"Money","namespace":"shop","fields":[{"name":"cents","type":"long"}]}'
    line = '{"type":"record","name":"Line","namespace":"shop","fields":[{"name":"price","type":"Money"}]}'
    order = (
        '{"type":"record","name":"Order","namespace":"shop","fields":'
        '[{"name":"line","type":"shop.Line"},{"name":"total","type":"Money"}]}'
    )
    to_money = {"name": "shop.Money", "subject": "money", "version": 1}
    subjects = {
        ("money", 1): {"schema": money},
        ("line", 4): {"schema": line, "references": [to_money]},
    }
    ids = {5: {"schema": order, "references": [{"name": "shop.Line", "subject": "line", "version": 4}, to_money]}}
    with registry_server(ids, subjects=subjects) as server:
        found = client(server).find(5)
        assert found == RegisteredSchema("AVRO", order, (money, line))
        node = parse(found.text, found.references)
        assert [m.type.name for m in node.members] == ["shop.Line", "shop.Money"]
        del subjects["money", 1]
    with registry_server(ids, subjects=subjects) as server, pytest.raises(RegistryError, match="lacks subject money"):
        client(server).find(5)


def test_a_busy_registry_is_asked_again() -> None:
    with registry_server(registry_schemas("postgres"), failures=2) as server:
        assert client(server).find(2) is not None
        assert len(server.asked) == 3


def test_a_registry_that_stays_busy_stops_the_stream() -> None:
    with registry_server(registry_schemas("postgres"), failures=99) as server:
        with pytest.raises(RegistryUnavailable, match="status 503") as caught:
            client(server).find(2)
        assert caught.value.hint


def test_no_registry_at_the_address_stops_the_stream(server: RegistryServer) -> None:
    gone = ConfluentRegistry({"url": "http://127.0.0.1:9", **QUICK})
    with pytest.raises(RegistryUnavailable, match=r"127\.0\.0\.1:9 does not answer for schema id 2") as caught:
        gone.find(2)
    assert "schema.registry.url" in (caught.value.hint or "")


def test_a_wrong_path_is_no_unknown_id(server: RegistryServer) -> None:
    elsewhere = ConfluentRegistry({"url": f"{server.url}/apis/registry", **QUICK})
    with pytest.raises(RegistryError, match="status 404") as caught:
        elsewhere.find(2)
    assert "path" in (caught.value.hint or "")


def test_the_second_address_is_asked_when_the_first_is_away(server: RegistryServer) -> None:
    registry = ConfluentRegistry({"url": f"http://127.0.0.1:9,{server.url}", **QUICK})
    assert registry.find(2) is not None


@pytest.mark.parametrize("password", ["hunter2", "hun/ter2", "hun@ter2", "hun%40ter2"])
def test_a_user_in_the_address_is_never_shown(password: str) -> None:
    asked = ConfluentRegistry({"url": f"http://sink:{password}@127.0.0.1:1", "max.retries": "0", "timeout": "1"})
    assert "ter2" not in repr(asked)
    with pytest.raises(RegistryError) as caught:
        asked.find(1)
    assert "ter2" not in f"{caught.value} {caught.value.hint}"


def test_a_user_is_sent_and_never_shown() -> None:
    with registry_server(registry_schemas("postgres"), user="sink:hunter2") as server:
        assert client(server, basic_auth_user_info="sink:hunter2").find(2) is not None
        wrong = client(server, basic_auth_user_info="sink:hunter3")
        with pytest.raises(RegistryError, match="refuses") as caught:
            wrong.find(2)
        address = server.url.replace("//", "//sink:hunter3@")
        by_url = ConfluentRegistry({"url": address, **QUICK})
        with pytest.raises(RegistryError) as again:
            by_url.find(2)
    for text in (str(caught.value), str(caught.value.hint), str(again.value), repr(wrong), repr(by_url)):
        assert "hunter" not in text


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"basic.auth.user.info": "hunter2"}, "basic.auth.user.info"),
        ({"max.retries": "many"}, "max.retries"),
        ({"ssl.ca.location": "/nowhere/ca.pem"}, "No such file"),
        ({"basic.auth.credentials.source": "SASL_INHERIT"}, "SASL_INHERIT"),
    ],
)
def test_wrong_settings_are_told(more: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        ConfluentRegistry({"url": "http://127.0.0.1:9", **more})
    assert "hunter2" not in str(caught.value)


def test_one_client_for_a_process_and_none_without_an_address(server: RegistryServer) -> None:
    assert schema_registry({}) is None
    assert schema_registry({"url": server.url}) is schema_registry({"url": server.url})


def test_a_registry_in_memory_of_the_client_library() -> None:
    from confluent_kafka.schema_registry import Schema

    registry = ConfluentRegistry({"url": "mock://here"})
    text = registry_schemas("postgres")[2]["schema"]
    registered = registry._client.register_schema("key", Schema(text, "AVRO"))
    found = registry.find(registered)
    assert found == RegisteredSchema("AVRO", text)
    assert registry.find(registered + 1) is None
