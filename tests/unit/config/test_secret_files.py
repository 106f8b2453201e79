"""Secrets in files of their own: read when the configuration is, shown nowhere."""

from pathlib import Path

import jsonschema
import pytest
import yaml

from ch_sink.config import load, load_job
from ch_sink.config.schema import json_schema
from ch_sink.errors import ConfigError

SECRET = "s3cret of äll"


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n", encoding="utf-8")
    return path


def written(tmp_path: Path, secret: object, kafka: str = "", clickhouse: str = "", more: str = "") -> Path:
    path = tmp_path / "orders.yaml"
    path.write_text(
        f"kafka:\n  topic: t\n  bootstrap.servers: k:1\n{kafka}"
        f"clickhouse:\n  url: http://c:8123\n  table: t\n{clickhouse}{more}".replace("SECRET", str(secret))
    )
    return path


def test_every_kind_of_secret_is_read_from_its_file(tmp_path: Path, secret: Path) -> None:
    path = written(
        tmp_path,
        secret,
        "  sasl.password_file: SECRET\n  ssl.key.password_file: SECRET\n"
        "  schema.registry.url: http://r\n  schema.registry.basic.auth.user.info_file: SECRET\n",
        "  password_file: SECRET\n  http_proxy_file: SECRET\n",
        "columns: {mask: {mail: hmac-sha256}, mask_key_file: SECRET}\n",
    )
    config = load(path, environ={})
    assert config.clickhouse.password.get_secret_value() == SECRET
    assert config.clickhouse.connection()["http_proxy"] == SECRET
    assert {config.kafka.client()[name] for name in ("sasl.password", "ssl.key.password")} == {SECRET}
    assert config.kafka.registry()["basic.auth.user.info"] == SECRET
    assert config.policy().columns.mask_key == SECRET
    assert SECRET not in repr(config) + config.model_dump_json() + repr(config.policy())
    jsonschema.validate(yaml.safe_load(path.read_text()), json_schema())


def test_an_exception_of_a_job_has_a_file_of_its_own(tmp_path: Path, secret: Path) -> None:
    path = written(tmp_path, secret, more="tables:\n  - match: t\n    clickhouse: {password_file: SECRET}\n")
    path.write_text(path.read_text().replace("topic: t", "topics: .*"))
    assert load_job(path, (), {}).variants[0].config.clickhouse.password.get_secret_value() == SECRET


def test_the_environment_names_files_too(tmp_path: Path, secret: Path) -> None:
    environ = {"CH_SINK__CLICKHOUSE__PASSWORD_FILE": str(secret), "CH_SINK__KAFKA__SASL_PASSWORD_FILE": str(secret)}
    config = load(written(tmp_path, secret), environ=environ)
    assert config.clickhouse.password.get_secret_value() == config.kafka.client()["sasl.password"] == SECRET


@pytest.mark.parametrize(("content", "read"), [(b"a\r\n", "a"), (b"a \n\n", "a \n"), (b"", "")])
def test_one_line_break_at_the_end_does_not_belong_to_the_secret(tmp_path: Path, content: bytes, read: str) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    config = load(written(tmp_path, path, clickhouse="  password_file: SECRET\n"), environ={})
    assert config.clickhouse.password.get_secret_value() == read


@pytest.mark.parametrize(
    ("clickhouse", "said"),
    [
        ("  password_file: /nowhere/at/all\n", r"line 7: clickhouse.password_file cannot be read: /nowhere/at/all: No"),
        ("  password_file: SECRET\n  password: x\n", r"line 7: clickhouse.password_file: password is set as well"),
        ("  passwort_file: SECRET\n", r"clickhouse.passwort_file"),
        ("  table_file: SECRET\n", r"clickhouse.table_file"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_without_its_content(
    tmp_path: Path, secret: Path, clickhouse: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        load(written(tmp_path, secret, clickhouse=clickhouse), environ={})
    assert SECRET not in str(refused.value)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="it is not text"):
        load(written(tmp_path, path, clickhouse="  password_file: SECRET\n"), environ={})
