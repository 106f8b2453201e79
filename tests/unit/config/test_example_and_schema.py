"""What ``init --example`` and ``--json-schema`` print: an example that loads, and a schema of what the models say."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from ch_sink.cli import main
from ch_sink.config import load_job
from ch_sink.config.schema import EXAMPLE, json_schema
from ch_sink.config.tree import known_keys
from ch_sink.errors import ConfigError

DOCS = Path(__file__).resolve().parents[3] / "docs" / "configuration.md"
SMALL: dict[str, Any] = {
    "kafka": {"topic": "a", "bootstrap.servers": "b:9092"},
    "clickhouse": {"url": "http://c", "table": "t"},
}


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(json_schema())
    return jsonschema.Draft202012Validator(json_schema())


def shown(*words: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 0
    return capsys.readouterr().out


def commented_in(text: str) -> str:
    """The example with every key that it only mentions; the sections of one line each stay out of the way."""
    return re.sub(r"^( *)# (?=[a-z_. ]+:)", r"\1", text, flags=re.MULTILINE)


def test_the_commands_print_both(capsys):
    assert shown("init", "--example", capsys=capsys).rstrip() == EXAMPLE.rstrip()
    assert json.loads(shown("init", "--json-schema", capsys=capsys)) == json_schema()


def test_the_example_loads_and_fits_the_schema(tmp_path, schema):
    path = tmp_path / "example.yaml"
    path.write_text(EXAMPLE)
    job = load_job(path, (), {})
    assert job.topics is not None
    assert len(job.variants) == 4
    schema.validate(yaml.safe_load(EXAMPLE))


def test_what_the_example_mentions_in_comments_loads_and_fits_too(tmp_path, schema):
    text = commented_in(EXAMPLE)
    assert "\nretry_for: 1 hour" in text
    path = tmp_path / "example.yaml"
    path.write_text(text)
    job = load_job(path, (), {"CH_SINK__COLUMNS__MASK_KEY": "x"})
    assert job.usual.retry_for == 3600
    assert job.usual.columns.exclude == ("password_hash",)
    schema.validate(yaml.safe_load(text))


def test_the_example_mentions_every_key():
    text = commented_in(EXAMPLE)
    for section, model in known_keys().items():
        for key in known_keys(model) if model else [section]:
            if section not in ("kafka", "tables") and key not in ("username", "password"):
                assert re.search(rf"\b{key}:", text), f"{section}: {key} is not in the example"


def test_the_documentations_example_loads_and_fits(tmp_path, schema):
    [block] = re.findall(r"## A whole database\n```yaml\n(.*?)```", DOCS.read_text(), re.DOTALL)
    path = tmp_path / "shop.yaml"
    path.write_text(block)
    assert load_job(path, (), {}).topics is not None
    schema.validate(yaml.safe_load(block))


@pytest.mark.parametrize(
    "more",
    [
        {"deletes": "maybe"},
        {"evolv": "fail"},
        {"clickhouse": {"url": "http://c", "tabel": "t"}},
        {"kafka": {"topic": "a"}},
        {"kafka": {"topic": "a", "topics": "b", "bootstrap.servers": "b:9092"}},
        {"kafka": {"topic": "a", "bootstrap.servers": "b:9092", "auto.offset.reset": "latest"}},
        {"columns": {"mask": {"a": "md4"}}},
        {"tables": [{"skip": True}]},
        {"tables": [{"match": "a", "kafka": {"topic": "b"}}]},
        {"tables": [{"match": "a", "evolve": "perhaps"}]},
        {"init": {"arrays": "some"}},
    ],
)
def test_the_schema_refuses_what_the_models_refuse(tmp_path, schema, more):
    given = {**SMALL, **more}
    path = tmp_path / "wrong.yaml"
    path.write_text(yaml.safe_dump(given))
    with pytest.raises(ConfigError):
        load_job(path, (), {})
    assert not schema.is_valid(given)


@pytest.mark.parametrize(
    "more",
    [
        {"chunk_bytes": "64 MiB", "trigger_interval": 2, "handover_deadline": "10 minutes", "retry_for": "unlimited"},
        {"key_columns": "a, b"},
        {"key_columns": ["a", "b"]},
        {"clickhouse": {"url": "http://c", "table": "t", "settings": {"a": 1, "b": True, "c": "x"}}},
        {"state_tables": {"ledger": "mine"}},
        {"tables": [{"match": "a", "clickhouse": {"table": "b"}, "init": {"ttl": "x"}}]},
        {
            "kafka": {
                "topics": ["a", "b.*"],
                "bootstrap.servers": "b:9092",
                "sasl.password": "x",
                "socket.timeout.ms": 5,
            }
        },
    ],
)
def test_the_schema_accepts_what_the_models_accept(tmp_path, schema, more):
    given = {**SMALL, **more}
    path = tmp_path / "right.yaml"
    path.write_text(yaml.safe_dump(given))
    load_job(path, (), {})
    schema.validate(given)


def test_the_schema_explains_keys():
    found = json_schema()
    rename = found["$defs"]["ColumnsSection"]["properties"]["rename"]
    assert rename["description"] == "Column of the source → column of the table."
    assert found["properties"]["on_data_loss"]["description"]
