"""The configuration: what is accepted, what is refused and how that is said, and that secrets stay hidden."""

import ctypes
import json
from pathlib import Path

import confluent_kafka
import pytest

from ch_sink.clickhouse import ClickHouseSettings
from ch_sink.config import Config, load
from ch_sink.config.properties import LIBRDKAFKA, OWNED, SECRETS
from ch_sink.config.tree import known_keys
from ch_sink.errors import ConfigError
from ch_sink.model.policy import policy_of
from ch_sink.types.column import TypeChoices

SMALLEST = """\
kafka:
  topic: shop.public.orders
  bootstrap.servers: localhost:9092
clickhouse:
  url: http://localhost:8123
  database: shop
  table: orders
"""


def test_avro_alone_needs_a_registry(write) -> None:
    with pytest.raises(ConfigError, match=r"schema\.registry\.url"):
        load(write(SMALLEST + "format: avro\n"))
    found = load(write(SMALLEST + "format: avro\n"), ["kafka.schema.registry.url=http://u:hunter2@registry:8081"])
    assert found.kafka.registry() == {"url": "http://registry:8081", "basic.auth.user.info": "u:hunter2"}
    assert "hunter2" not in found.model_dump_json()


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "orders.yaml"
        path.write_text(text)
        return path

    return write


def refused(path: Path, overrides=(), environ=None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(path, overrides, environ or {})
    assert caught.value.exit_code == 2
    assert caught.value.hint
    return caught.value


def test_the_design_s_example_is_enough(write):
    config = load(write(SMALLEST), environ={})
    assert config.kafka.topic == "shop.public.orders"
    assert config.kafka.client() == {"bootstrap.servers": "localhost:9092"}
    assert (config.clickhouse.database, config.clickhouse.table) == ("shop", "orders")
    assert config.stream_name == "shop.public.orders:shop.orders"
    assert config.start == "ledger"
    assert config.chunk_offsets == 50_000


def test_defaults_are_those_of_the_policy(write):
    assert load(write(SMALLEST), environ={}).policy() == policy_of()


def test_every_choice_reaches_the_policy(write):
    text = SMALLEST + (
        "deletes: ignore\ntruncate: apply\non_unresolved: 'null'\non_bad_record: fail\nout_of_range: clamp\n"
        "decimal_handling: string\nbinary_handling: hex\ntime_precision: connect\n"
        "evolve: add_columns\nversion: {strategy: source_time}\nplaceholder: __gone\nredelivery_scan: 5\n"
        "sign_column: s\nkey_columns: [a, b]\n"
    )
    assert load(write(text), environ={}).policy() == policy_of(
        deletes="ignore",
        truncate="apply",
        on_unresolved="null",
        on_bad_record="fail",
        out_of_range="clamp",
        decimal_handling="string",
        binary_handling="hex",
        time_precision="connect",
        evolve="add_columns",
        version_strategy="source_time",
        placeholder="__gone",
        redelivery_scan=5,
        sign_column="s",
        key_columns=("a", "b"),
    )


def test_a_placeholder_in_hexadecimal_digits_is_decoded(write):
    config = load(write(SMALLEST + 'placeholder: "hex:5f5f5821"\n'), environ={})
    assert config.policy().values.placeholder == "__X!"
    assert type(config).from_task_json(config.to_task_json()).policy() == config.policy()
    for wrong in ("hex:5", "hex:zz", "hex:ff", "hex:"):
        assert "unavailable.value.placeholder" in str(refused(write(SMALLEST), [f"placeholder={wrong}"]))


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("clickhouse.tabel", "clickhouse.table"),
        ("clickhouse.user", "clickhouse.username"),
        ("kafka.bootstrap.server", "kafka.bootstrap.servers"),
        ("kafka.sasl.passwort", "kafka.sasl.password"),
        ("kafka.schema.registry.uri", "kafka.schema.registry.url"),
        ("topic", "kafka.topic"),
        ("version.strateg", "version.strategy"),
        ("trunkate", "truncate"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_name(write, wrong, right):
    error = refused(write(SMALLEST), [f"{wrong}=x"])
    assert f"did you mean {right}?" in str(error)


def test_all_problems_are_told_at_once_with_their_lines(write):
    text = SMALLEST.replace("table: orders", "tabel: orders") + "deletes: maybe\nchunk_bytes: 5 tons\n"
    error = refused(path := write(text))
    assert str(path) in str(error)
    assert "line 7: clickhouse.tabel" in str(error)
    assert "clickhouse.table is missing" in str(error)
    assert "line 8: deletes" in str(error)
    assert "line 9: chunk_bytes" in str(error)


def test_the_shipped_property_names_are_librdkafka_s_own(tmp_path):
    """librdkafka prints its own list; every name shipped here must be in it."""
    libraries = list((Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs").glob("librdkafka*"))
    if not libraries:
        pytest.skip("confluent-kafka has no librdkafka of its own here")
    library, libc = ctypes.CDLL(str(libraries[0])), ctypes.CDLL(None)
    libc.fopen.restype = ctypes.c_void_p
    libc.fclose.argtypes = [ctypes.c_void_p]
    library.rd_kafka_conf_properties_show.argtypes = [ctypes.c_void_p]
    listing = tmp_path / "properties"
    file = libc.fopen(str(listing).encode(), b"w")
    library.rd_kafka_conf_properties_show(file)
    libc.fclose(file)
    known = {line.split("|")[0].strip() for line in listing.read_text().splitlines() if "|" in line}
    assert known >= LIBRDKAFKA
    assert known >= OWNED
    secret_looking = {n for n in LIBRDKAFKA if n.endswith(("password", "secret", "passphrase", "key.pem"))}
    assert secret_looking <= SECRETS


def test_every_shipped_property_may_be_set(write):
    properties = "".join(f"  {name}: x\n" for name in sorted(LIBRDKAFKA - {"bootstrap.servers"}))
    config = load(write(SMALLEST.replace("clickhouse:\n", properties + "clickhouse:\n")), environ={})
    assert set(config.kafka.client()) == LIBRDKAFKA


def test_values_of_properties_become_librdkafka_s_text(write):
    text = SMALLEST.replace("bootstrap.servers: localhost:9092", "bootstrap.servers: [a:1, b:2]").replace(
        "clickhouse:", "  socket.keepalive.enable: true\n  fetch.min.bytes: 10\nclickhouse:"
    )
    client = load(write(text), environ={}).kafka.client()
    assert client == {"bootstrap.servers": "a:1,b:2", "socket.keepalive.enable": "true", "fetch.min.bytes": "10"}


def test_environment_overrides_the_file_and_set_overrides_both(write):
    path = write(SMALLEST)
    environ = {"CH_SINK__CLICKHOUSE__TABLE": "e", "CH_SINK__CLICKHOUSE__DATABASE": "e", "OTHER": "x"}
    config = load(path, ["clickhouse.table=s"], environ)
    assert (config.clickhouse.database, config.clickhouse.table) == ("e", "s")


def test_environment_names_of_kafka_properties(write):
    environ = {
        "CH_SINK__KAFKA__SASL_PASSWORD": "s3cret",
        "CH_SINK__KAFKA__BOOTSTRAP_SERVERS": "k:1",
        "CH_SINK__KAFKA__SCHEMA_REGISTRY_URL": "http://r",
        "CH_SINK__KAFKA__LOG_LEVEL": "3",
    }
    kafka = load(write(SMALLEST), environ=environ).kafka
    assert kafka.client() == {"bootstrap.servers": "k:1", "sasl.password": "s3cret", "log_level": "3"}
    assert kafka.registry() == {"url": "http://r"}


def test_an_unknown_environment_variable_is_named(write):
    error = refused(write(SMALLEST), environ={"CH_SINK__CLICKHOSE__TABLE": "x"})
    assert "CH_SINK__CLICKHOSE__TABLE" in str(error)


def test_lists_may_be_given_as_text(write):
    assert load(write(SMALLEST), ["key_columns=a, b"], {}).key_columns == ("a", "b")


@pytest.mark.parametrize(
    ("text", "seconds"), [("10", 10), ("500ms", 0.5), ("10 seconds", 10), ("2 minutes", 120), ("1h", 3600), ("1m", 60)]
)
def test_durations(write, text, seconds):
    assert load(write(SMALLEST), [f"trigger_interval={text}"], {}).trigger_interval == pytest.approx(seconds)


@pytest.mark.parametrize(("text", "size"), [("65536", 65536), ("64 MiB", 64 << 20), ("2m", 2 << 20), ("1 GB", 1 << 30)])
def test_sizes(write, text, size):
    assert load(write(SMALLEST), [f"chunk_bytes={text}"], {}).chunk_bytes == size


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SMALLEST + "deletes: ignore\ndeletes: fail\n", "line 9: deletes appears twice, first on line 8"),
        (SMALLEST + "  password: 0123\n", "put the value in quotes"),
        (SMALLEST.replace("table: orders", "table: on"), "clickhouse.table"),
        *((text, "") for text in ("", "- a\n- b\n", "just text\n", "kafka: x\n", "clickhouse: 5\n", "kafka: []\n")),
    ],
)
def test_a_file_is_refused(write, text, said):
    assert said in str(refused(write(text)))


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("clickhouse.url=localhost:8123", "HTTP address"),
        ("clickhouse.url=tcp://h:9000", "HTTP address"),
        ("clickhouse.url=http://h:9000", "native protocol"),
        ("clickhouse.url=http://h:8123/?user=x", "query"),
        ("clickhouse.url=http://h:port", "not a URL"),
        ("clickhouse.table=", "must not be empty"),
        ("clickhouse.settings.async_insert=1", "async_insert cannot be set"),
        ("flattened.fields_prefix=", "cannot be told from columns"),
        ("kafka.auto.offset.reset=latest", "set by the sink"),
        ("kafka.sasl.jaas.config=x", "property of Java clients"),
        ("kafka.ssl.truststore.location=x", "property of Java clients"),
        ("kafka.max.poll.records=x", "property of Java clients"),
    ],
)
def test_a_setting_is_refused(write, setting, said):
    assert said in str(refused(write(SMALLEST), [setting]))


def test_other_settings_of_clickhouse_can_be_given(write):
    assert load(write(SMALLEST), ["clickhouse.settings.max_threads=4"], {}).clickhouse.settings == {"max_threads": "4"}


def test_a_missing_file_is_named(tmp_path):
    assert "none.yaml: no such file" in str(refused(tmp_path / "none.yaml"))


def test_a_syntax_error_names_its_line_and_not_its_text(write):
    error = refused(write("kafka:\n  topic: a\n  sasl.password: 'hunter2\nclickhouse: {"))
    assert "line " in str(error)
    assert "hunter2" not in str(error)


SECRET = "hunter2-secret"
SECRET_OVERRIDES = [
    f"kafka.sasl.password={SECRET}",
    f"kafka.ssl.key.password={SECRET}",
    f"kafka.schema.registry.basic.auth.user.info=me:{SECRET}",
    f"clickhouse.password={SECRET}",
    f"clickhouse.http_proxy=http://me:{SECRET}@proxy",
]


def test_secrets_are_nowhere_but_where_they_are_asked_for(write):
    config = load(write(SMALLEST), SECRET_OVERRIDES, {})
    for shown in (repr(config), str(config), config.model_dump_json(), str(config.model_dump()), repr(config.kafka)):
        assert SECRET not in shown
    assert config.kafka.client()["sasl.password"] == SECRET
    assert config.kafka.registry()["basic.auth.user.info"] == f"me:{SECRET}"
    settings = ClickHouseSettings(**config.clickhouse.connection())
    assert settings.password == SECRET
    assert SECRET not in repr(settings)


def test_secrets_are_not_in_errors_about_other_keys_or_their_own(write):
    for extra in ("clickhouse.tabel=x", "clickhouse.url=nonsense", "deletes=x"):
        assert SECRET not in str(refused(write(SMALLEST), [*SECRET_OVERRIDES, extra]))
    assert SECRET not in str(refused(write(SMALLEST), [f"clickhouse.url=ftp://me:{SECRET}@host"]))
    assert SECRET not in str(refused(write(SMALLEST), [f"kafka.sasl.passwd={SECRET}"]))


def test_a_password_in_a_url_moves_to_where_it_is_hidden(write):
    config = load(
        write(SMALLEST),
        ["clickhouse.url=http://me:p%40ss@host:8123", "kafka.schema.registry.url=https://u:w@reg:1/x"],
        {},
    )
    assert config.clickhouse.url == "http://host:8123"
    assert (config.clickhouse.username, config.clickhouse.password.get_secret_value()) == ("me", "p@ss")
    assert config.kafka.registry() == {"url": "https://reg:1/x", "basic.auth.user.info": "u:w"}


def test_the_way_to_a_task_and_back_keeps_everything(write):
    config = load(write(SMALLEST), [*SECRET_OVERRIDES, "key_columns=a,b", "max_offsets_per_trigger=5"], {})
    text = config.to_task_json()
    back = Config.from_task_json(text)
    assert back == config
    assert back.kafka.client() == config.kafka.client()
    assert json.loads(text)["clickhouse"]["password"] == SECRET


def test_every_key_is_documented():
    page = (Path(__file__).resolve().parents[3] / "docs" / "configuration.md").read_text()
    for section, model in known_keys().items():
        for key in known_keys(model) if model else [section]:
            if section != "kafka" or key in ("topic", "bootstrap.servers", "group.id"):
                assert f"`{key}`" in page, f"{section}: {key} is not in docs/configuration.md"


def test_a_flat_name_that_is_no_choice_is_refused() -> None:
    with pytest.raises(TypeError, match="unknown choice 'trunkate'"):
        policy_of(trunkate="apply")


def test_choices_of_types_reach_init(write):
    text = SMALLEST + "init: {arrays: empty_for_null, json_type: JSON, json_columns: {payload: String}}\n"
    choices = load(write(text), environ={}).init.types()
    assert choices == TypeChoices(arrays="empty_for_null", json_type="JSON", json_columns=(("payload", "String"),))
    assert "init.json_columns.payload" in str(refused(write(SMALLEST + "init: {json_columns: {payload: Text}}\n")))


@pytest.mark.parametrize(("text", "rate"), [("0.25", 0.25), ("'0.25'", 0.25), ("1%", 0.01), ("0.5 %", 0.005)])
def test_limits_of_errors_are_a_number_and_a_share(write, text, rate):
    config = load(write(f"{SMALLEST}errors: {{max: 10, max_rate: {text}}}\n"), environ={})
    assert (config.errors.max, config.errors.max_rate) == (10, rate)
    assert load(write(SMALLEST), environ={}).errors == type(config.errors)()


@pytest.mark.parametrize("wrong", ["max: -1", "max_rate: 110%", "max_rate: few"])
def test_limits_of_errors_that_mean_nothing_are_refused(write, wrong):
    with pytest.raises(ConfigError, match=r"errors\.max"):
        load(write(f"{SMALLEST}errors: {{{wrong}}}\n"), environ={})
