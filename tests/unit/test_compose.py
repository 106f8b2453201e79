"""The files of compose/: held to the compose specification, to each other, and to the product that reads them."""

import itertools
import json
import os
import re
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from ch_sink.config import load
from ch_sink.config.tree import PREFIX

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "compose"
FILE = COMPOSE / "compose.yaml"
SCHEMA = ROOT / "tests" / "fixtures" / "compose-spec" / "compose-spec.json"
ONE_SHOT = {"register", "init"}
STREAMS = sorted((COMPOSE / "streams").glob("*.yaml"))
CONNECTORS = sorted((COMPOSE / "connect" / "connectors").glob("*.json"))


def read() -> dict[str, Any]:
    """The file with its anchors and merge keys resolved."""
    loaded: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return loaded


SERVICES: dict[str, dict[str, Any]] = read()["services"]


def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))


def words(service: dict[str, Any]) -> list[str]:
    command = service.get("command", [])
    return command.split() if isinstance(command, str) else [str(word) for word in command]


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Target → source of the short form."""
    pairs = [text.split(":") for text in service.get("volumes", [])]
    return {pair[1]: pair[0] for pair in pairs}


def test_the_file_follows_the_compose_specification() -> None:
    problems = [f"{'.'.join(map(str, e.absolute_path))}: {e.message}" for e in validator().iter_errors(read())]
    assert problems == []


@pytest.mark.parametrize(
    ("service", "key", "value"),
    [("kafka", "helthcheck", {}), ("kafka", "healthcheck", {"test": 5}), ("sink", "depends_on", {"init": {}})],
)
def test_the_schema_refuses_what_the_specification_does_not_know(service: str, key: str, value: object) -> None:
    broken = read()
    broken["services"][service][key] = value
    assert not validator().is_valid(broken)


def test_the_parts_of_the_way_are_all_there() -> None:
    wanted = "kafka registry connect mariadb postgres clickhouse spark-master spark-worker sink".split()
    assert set(wanted) | ONE_SHOT <= SERVICES.keys()
    assert {name for name, service in SERVICES.items() if "profiles" in service} == {"prometheus", "grafana"}


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_service_has_a_pinned_image_and_says_when_it_is_ready(name: str) -> None:
    service = SERVICES[name]
    image, _, tag = service["image"].rpartition(":")
    assert image, f"{name}: {service['image']} has no tag"
    # Built here, or a tag with at least a major and a minor version; never a registry's host name.
    built = any(s["image"] == service["image"] and "build" in s for s in SERVICES.values())
    assert built or re.fullmatch(r"v?\d+\.\d+[\w.-]*", tag), f"{name}: {tag} is not a pinned version"
    assert "." not in image.split("/")[0], f"{name}: {image} names a host"
    if name in ONE_SHOT:
        assert service["restart"] == "no"
        waiting = [s for s in SERVICES.values() if name in s.get("depends_on", {})]
        assert [s["depends_on"][name] for s in waiting] == [{"condition": "service_completed_successfully"}]
    else:
        assert service["healthcheck"]["test"][0] == "CMD"
        assert service["healthcheck"]["retries"] > 1


def test_whoever_waits_for_a_service_waits_until_it_is_ready() -> None:
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            wanted = "service_completed_successfully" if other in ONE_SHOT else "service_healthy"
            assert how == {"condition": wanted}, f"{name} waits for {other}"
            assert other in SERVICES


def test_ports_are_open_to_this_machine_only_and_none_twice() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in ports)
    outside = [port.split(":")[1] for port in ports]
    assert len(outside) == len(set(outside))


def test_everything_that_is_mounted_exists_and_volumes_are_declared() -> None:
    declared = set(read()["volumes"])
    used = set()
    for name, service in SERVICES.items():
        for source in mounts(service).values():
            if source.startswith("."):
                assert (COMPOSE / source).exists(), f"{name} mounts {source}"
            else:
                used.add(source)
    assert used == declared


def test_paths_in_commands_are_mounted_or_built_into_the_image() -> None:
    built = {f"/opt/ch_sink/{p.name}" for p in (COMPOSE / "spark").iterdir()} | {"/opt/ch_sink/job.py"}
    for name, service in SERVICES.items():
        if service["image"] != "ch_sink/spark:local":
            continue
        given = [*words(service), *service.get("healthcheck", {}).get("test", []), *_environment(service).values()]
        for word in (w for w in given if re.match(r"/(opt/ch_sink|streams|connect)\b", w)):
            if word in built:
                continue
            top = next((t for t in mounts(service) if word == t or word.startswith(t + "/")), None)
            assert top, f"{name}: {word} comes from nowhere"
            rest = word.removeprefix(top).lstrip("/").replace("${DEMO_FORMAT:-json}", "json")
            assert (COMPOSE / mounts(service)[top] / rest).exists(), f"{name}: {word} is missing"


def _environment(service: dict[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in service.get("environment", {}).items()}


def test_the_main_job_runs_every_stream() -> None:
    command = words(SERVICES["sink"])
    given = [word for before, word in itertools.pairwise(command) if before == "--config"]
    assert given == [f"/streams/{path.name}" for path in STREAMS]


@pytest.mark.parametrize("path", STREAMS, ids=lambda path: path.stem)
def test_a_stream_s_configuration_loads_and_names_services_that_are_there(path: Path) -> None:
    passwords = {k: "secret" for k in _environment(SERVICES["sink"]) if k.startswith(PREFIX)}
    config = load(path, environ=passwords)
    assert config.clickhouse.password.get_secret_value() == "secret"
    assert config.kafka.bootstrap == "kafka:9092"
    assert "INSIDE://kafka:9092" in SERVICES["kafka"]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert config.kafka.registry()["url"].startswith("http://registry:8080/")
    assert config.clickhouse.url == "http://clickhouse:8123"
    assert config.clickhouse.username == SERVICES["clickhouse"]["environment"]["CLICKHOUSE_USER"]
    assert config.clickhouse.database == SERVICES["clickhouse"]["environment"]["CLICKHOUSE_DB"]


def test_every_stream_is_fed_by_a_connector_and_compared_with_its_source() -> None:
    fed = set()
    for path in CONNECTORS:
        connector = json.loads(path.read_text(encoding="utf-8"))
        fed |= {f"{connector['topic.prefix']}.{table}" for table in connector["table.include.list"].split(",")}
    configs = [load(path, environ={}) for path in STREAMS]
    assert {config.kafka.topic for config in configs} == fed
    for config in configs:
        table = config.clickhouse.table
        assert f"{config.clickhouse.database}.{table}_current" in _text(f"compare/{table}.clickhouse.sql")
        assert re.search(rf"FROM {table}\b", _text(f"compare/{table}.source.sql"))
    assert {path.name.split(".")[0] for path in (COMPOSE / "compare").iterdir()} == {p.stem for p in STREAMS}


def _text(name: str) -> str:
    return (COMPOSE / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", CONNECTORS, ids=lambda path: path.stem)
def test_a_connector_s_hosts_secrets_and_users_are_those_of_the_services(path: Path) -> None:
    connector = json.loads(path.read_text(encoding="utf-8"))
    assert all(isinstance(value, str) for value in connector.values())
    source = SERVICES[connector["database.hostname"]]
    environment = _environment(source)
    assert connector["database.user"] in (environment.get("MARIADB_USER"), environment.get("POSTGRES_USER"))
    found = re.fullmatch(r"\$\{env:(\w+)\}", connector["database.password"])
    assert found, "the password stands in the worker's environment"
    assert _environment(SERVICES["connect"])[found[1]] == environment.get(
        "MARIADB_PASSWORD", environment.get("POSTGRES_PASSWORD")
    )
    # Both formats convert keys and values.
    for name in ("json", "avro"):
        converters = json.loads(_text(f"connect/formats/{name}.json"))
        assert {"key.converter", "value.converter"} <= converters.keys()
        assert all(isinstance(value, str) for value in converters.values())


@pytest.mark.parametrize(("file", "context"), [("spark/Dockerfile", ROOT), ("connect/Dockerfile", COMPOSE / "connect")])
def test_a_dockerfile_copies_what_exists_from_pinned_images(file: str, context: Path) -> None:
    bases: list[str] = []
    for line in _text(file).replace("\\\n", " ").splitlines():
        step, *rest = line.split() or [""]
        if step == "FROM":
            bases.append(rest[0])
        if step == "COPY" and not rest[0].startswith("--from="):
            for source in rest[:-1]:
                assert (context / source).exists(), f"{file} copies {source}"
                assert context != ROOT or not _ignored(source), f"{source} is kept out by .dockerignore"
    assert bases
    assert all(re.search(r":v?\d+\.\d+\.\d+", base) for base in bases)


def test_the_connect_image_brings_no_second_copy_of_the_worker_s_own_classes() -> None:
    """With connect-json among the plugins, ``JsonConverter`` cannot be instantiated and every connector is refused."""
    pom = _text("connect/pom.xml")
    found = re.search(r"<excludeGroupIds>(.*)</excludeGroupIds>", pom)
    assert found
    assert {"org.apache.kafka", "org.slf4j"} <= set(found[1].split(","))
    needed = {json.loads(path.read_text())["connector.class"].split(".")[3] for path in CONNECTORS}
    names = set(re.findall(r"<artifactId>debezium-connector-(\w+)</artifactId>", pom))
    assert {name.removesuffix("ql") for name in needed} == {name.removesuffix("ql") for name in names}


def _ignored(source: str) -> bool:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    kept = [line.removeprefix("!") for line in lines if line.startswith("!")]
    return "*" in lines and not any(source == path or source.startswith(path + "/") for path in kept)


def test_the_spark_image_has_the_python_and_the_versions_of_the_project() -> None:
    dockerfile = _text("spark/Dockerfile")
    versions = set(re.findall(r"python:(\d+\.\d+)", dockerfile)) | set(re.findall(r"lib/python(\d+\.\d+)/", dockerfile))
    assert len(versions) == 1
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == f">={versions.pop()}"
    assert "--require-hashes -r /opt/ch_sink/requirements.lock" in dockerfile
    assert "COPY compose/spark/requirements.lock /opt/ch_sink/requirements.lock" in dockerfile
    mine, everything = (set(_locked(path)) for path in (COMPOSE / "spark", ROOT))
    assert mine < everything, "the same versions and hashes, of fewer packages"
    named = {entry.partition("==")[0] for entry in mine}
    wanted = [*project["dependencies"], *project["optional-dependencies"]["avro"]]
    assert {re.split(r"[^\w-]", text)[0].replace("_", "-") for text in wanted} <= named


def _locked(folder: Path) -> list[str]:
    """The packages of a lock with their hashes."""
    return re.split(r"\n(?! )", (folder / "requirements.lock").read_text(encoding="utf-8").rstrip("\n"))


@pytest.mark.parametrize("script", sorted(COMPOSE.rglob("*.sh")), ids=lambda path: path.name)
def test_a_script_is_valid_and_can_be_run(script: Path) -> None:
    checked = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert os.access(script, os.X_OK) or script.name == "http_ok.sh"


@pytest.fixture
def demo(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs compose/demo.sh with a docker command that prints prepared rows: of SOURCE and CLICKHOUSE, by service."""
    docker = tmp_path / "docker"
    docker.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        '  *"exec -T clickhouse"*) cat >/dev/null; printf "%b" "$CLICKHOUSE" ;;\n'
        '  *"exec -T"*) cat >/dev/null; printf "%b" "$SOURCE" ;;\n'
        '  *) echo "$*" >>"$(dirname "$0")/calls" ;;\n'
        "esac\n"
    )
    docker.chmod(0o755)

    def run(*arguments: str, **rows: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **rows, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        return subprocess.run(
            [str(COMPOSE / "demo.sh"), *arguments], capture_output=True, text=True, check=False, env=environment
        )

    return run


Demo = Callable[..., subprocess.CompletedProcess[str]]


def test_the_demo_tells_its_use(demo: Demo) -> None:
    shown = demo("nonsense")
    assert shown.returncode == 2
    assert all(
        f"compose/demo.sh {word}" in shown.stderr for word in ("[--avro]", "change", "compare", "status", "down")
    )


def test_the_demo_ends_well_when_the_tables_equal_their_sources(demo: Demo) -> None:
    ran = demo(SOURCE="1\\tAda\\n2\\tGrace\\n", CLICKHOUSE="1\\tAda\\n2\\tGrace\\n")
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("equals its source: 2 rows") == 4  # two tables, before and after the changes


def test_a_comparison_shows_what_differs_and_fails(demo: Demo) -> None:
    ran = demo("compare", SOURCE="1\\tAda\\n2\\tGrace\\n", CLICKHOUSE="1\\tAda\\n")
    assert ran.returncode == 1
    assert "< 2\tGrace" in ran.stderr


def entrypoint(folder: Path, *words: str, **variables: str) -> list[str]:
    """The command that the image runs in a pod, as a program is called that prints its arguments."""
    for name in ("java/bin/java", "spark/bin/spark-submit"):
        program = folder / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text('#!/bin/sh\nprintf "%s\\n" "$0" "$@"\n')
        program.chmod(0o755)
    homes = {"SPARK_HOME": str(folder / "spark"), "JAVA_HOME": str(folder / "java"), "PATH": os.environ["PATH"]}
    script = COMPOSE / "spark" / "entrypoint.sh"
    ran = subprocess.run([str(script), *words], env={**homes, **variables}, capture_output=True, text=True, check=True)
    return ran.stdout.replace(f"{folder}/", "").splitlines()


def test_the_image_starts_driver_and_executor_as_spark_on_kubernetes_asks(tmp_path: Path) -> None:
    assert entrypoint(tmp_path, "echo", "as it is") == ["as it is"]
    driver = entrypoint(tmp_path, "driver", "--class", "a b", SPARK_DRIVER_BIND_ADDRESS="10.0.0.1")
    assert driver[0] == "spark/bin/spark-submit"
    assert "spark.driver.bindAddress=10.0.0.1" in driver
    assert driver[-2:] == ["--class", "a b"]
    told = {
        "SPARK_DRIVER_URL": "spark://driver",
        "SPARK_EXECUTOR_ID": "7",
        "SPARK_EXECUTOR_CORES": "2",
        "SPARK_EXECUTOR_MEMORY": "600m",
        "SPARK_APPLICATION_ID": "app",
        "SPARK_EXECUTOR_POD_IP": "10.0.0.2",
        "SPARK_EXECUTOR_POD_NAME": "pod",
        "SPARK_RESOURCE_PROFILE_ID": "0",
        "SPARK_JAVA_OPT_0": "-Dfirst=1 2",
        "SPARK_JAVA_OPT_1": "-Dsecond",
        "SPARK_CONF_DIR": "/opt/spark/conf",
    }
    executor = entrypoint(tmp_path, "executor", **told)
    assert executor[:5] == ["java/bin/java", "-Dfirst=1 2", "-Dsecond", "-Xms600m", "-Xmx600m"]
    assert executor[6] == "/opt/spark/conf:spark/jars/*"
    options = dict(zip(executor[8::2], executor[9::2], strict=True))
    assert options == {
        "--driver-url": "spark://driver",
        "--executor-id": "7",
        "--cores": "2",
        "--app-id": "app",
        "--hostname": "10.0.0.2",
        "--resourceProfileId": "0",
        "--podName": "pod",
    }


def test_the_operators_manifest_names_what_the_image_has() -> None:
    manifest = yaml.safe_load((COMPOSE / "kubernetes" / "spark-application.yaml").read_text(encoding="utf-8"))["spec"]
    dockerfile = (COMPOSE / "spark" / "Dockerfile").read_text(encoding="utf-8")
    assert manifest["mainApplicationFile"].removeprefix("local://") in dockerfile
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert f"pyspark=={manifest['sparkVersion']} " in lock
    [secret] = manifest["driver"]["env"]
    assert secret["name"].startswith(PREFIX)
    assert manifest["arguments"][1].startswith(manifest["driver"]["configMaps"][0]["path"])
