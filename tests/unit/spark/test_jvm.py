"""The command of the driver's JVM, its class-data archive, and a JVM that does not start."""

import os
import sys
from pathlib import Path

import pytest

from ch_sink.errors import ChSinkError
from ch_sink.spark.installed import archives, find_archive, keep_archive
from ch_sink.spark.jvm import Jvm, java_command
from ch_sink.wiring.process import Stop, Stopped


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Spark home with two jars, and nothing in the environment that the launcher would read."""
    for name in list(os.environ):
        if name.startswith(("SPARK_", "PYSPARK_SUBMIT")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("CH_SINK_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "home" / "jars").mkdir(parents=True)
    for name in ("a.jar", "slf4j-api-2.jar"):
        (tmp_path / "home" / "jars" / name).touch()
    return tmp_path / "home"


JAVA = Path("/opt/jdk/bin/java")


def test_a_local_driver_is_started_without_launcher_and_incubator_module(home: Path) -> None:
    conf = {"spark.master": "local[2]", "spark.driver.memory": "3g", "spark.driver.extraJavaOptions": "-Da='b c' -Dd"}
    command = java_command(JAVA, home, conf)
    assert command[0] == str(JAVA)
    assert "-Xmx3g" in command
    assert command[command.index("-Da=b c") + 1] == "-Dd"
    assert [part.rpartition("/")[2] for part in command[2].split(":")] == ["conf", "slf4j-api-2.jar", "a.jar"]
    assert not [word for word in command if "incubator" in word]
    assert command[-1] == "pyspark-shell"


@pytest.mark.parametrize(
    ("conf", "environment", "file"),
    [
        ({"spark.master": "spark://host:7077"}, {}, None),
        ({"spark.driver.extraLibraryPath": "/lib"}, {}, None),
        ({}, {"SPARK_SUBMIT_OPTS": "-Da"}, None),
        ({}, {}, "spark-defaults.conf"),
        ({}, {}, "spark-env.sh"),
    ],
)
def test_what_the_launcher_reads_is_left_to_it(
    conf: dict[str, str], environment: dict[str, str], file: str | None, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if file:
        (home / "conf").mkdir()
        (home / "conf" / file).touch()
    assert java_command(JAVA, home, conf)[0] == str(home / "bin" / "spark-submit")


def test_an_archive_is_used_if_it_is_whole_and_of_these_jars(home: Path, tmp_path: Path) -> None:
    made = tmp_path / "classes.jsa"
    made.write_bytes(b"x" * 100)
    kept = keep_archive(made, JAVA, home)
    assert find_archive(JAVA, home) == kept
    assert f"-XX:SharedArchiveFile={kept}" in java_command(JAVA, home, {})
    (home / "jars" / "b.jar").touch()
    assert find_archive(JAVA, home) is None
    (home / "jars" / "b.jar").unlink()
    kept.write_bytes(b"x" * 99)
    assert find_archive(JAVA, home) is None
    kept.write_bytes(b"x" * 100)
    os.utime(home / "jars" / "a.jar", (0, 0))
    assert find_archive(JAVA, home) is None, "Java passes over the archive if a jar was installed again"
    assert archives(JAVA, home) == [kept]
    assert kept.parent == tmp_path / "cache"


def test_a_jvm_that_ends_while_it_starts_is_an_error_with_its_code(tmp_path: Path) -> None:
    jvm = Jvm([sys.executable, "-c", "raise SystemExit(7)"], tmp_path)
    with pytest.raises(ChSinkError, match="exit code 7"):
        jvm.gateway()


def test_a_signal_during_the_start_ends_the_jvm(tmp_path: Path) -> None:
    jvm = Jvm([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path)
    stop = Stop()
    stop.request(2)
    with pytest.raises(Stopped):
        jvm.gateway(stop)
    assert not jvm.running


def test_properties_are_in_a_file_of_the_user_s_own_until_the_jvm_has_read_them(tmp_path: Path) -> None:
    """Every user of the machine sees a command line; a JVM also shows it on Spark's pages and in event logs."""
    conf = {"spark.master": "local[2]", "spark.hadoop.fs.s3a.secret.key": "hunter2\\ \n=x"}
    for master in ("local[2]", "spark://host:7077"):
        assert "hunter" not in str(java_command(JAVA, tmp_path, {**conf, "spark.master": master}))
    text, said = tmp_path / "text", tmp_path / "said"
    script = (
        "import os, struct, sys\n"
        f"open({str(text)!r}, 'w').write(f'{{os.stat(sys.argv[1]).st_mode & 0o777:o}} {{open(sys.argv[1]).read()}}')\n"
        "address = os.environ['_PYSPARK_DRIVER_CONN_INFO_PATH']\n"
        "open(address + '.new', 'wb').write(struct.pack('>ii', 7, 1) + b's')\n"
        f"open({str(said)!r}, 'w').write(sys.argv[1])\n"
        "os.rename(address + '.new', address)\n"
        "sys.stdin.read()\n"
    )
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "spark-defaults.conf").write_text("spark.a  b")
    command = java_command(JAVA, tmp_path, conf)
    file = command[command.index("--properties-file") + 1]
    jvm = Jvm([sys.executable, "-c", script, file], tmp_path, conf)
    try:
        assert jvm.gateway().port == 7
        assert not Path(said.read_text()).exists()
    finally:
        jvm.end()
    assert text.read_text() == (
        "600 spark.a  b\nspark.master=local[2]\nspark.hadoop.fs.s3a.secret.key=hunter2\\\\\\ \\n\\=x\n"
    )


def test_a_jvm_ends_when_its_input_closes(tmp_path: Path) -> None:
    jvm = Jvm([sys.executable, "-c", "import sys; sys.stdin.read()"], tmp_path)
    assert jvm.running
    jvm.end()
    assert not jvm.running
