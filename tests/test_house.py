"""The repository as a whole: what is tracked, what is packed, what is public."""

import importlib
import pkgutil
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import ch_sink

ROOT = Path(__file__).resolve().parents[1]

_NO_TEXT = {".gz", ".png", ".jar", ".avro"}
_FOREIGN = re.compile(
    r"(?:https?://[^\s\"'`]*(?:/simple\b|artifactory|nexus|/pypi/)|--(?:extra-)?index-url|--trusted-host"
    r"|files\.pythonhosted\.org"
    # Folders of one machine.
    r"|/(?:work|home|Users)/[a-z])"
)
_SECRET = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----|\bAKIA[0-9A-Z]{16}\b|\bghp_[A-Za-z0-9]{36}\b")


def tracked() -> list[Path]:
    """Files under version control, or those of a source archive."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


def test_tracked_files_name_no_package_index_and_no_folder_of_a_machine():
    found = []
    for path in tracked():
        if path.suffix in _NO_TEXT or path == Path(__file__).resolve() or "fixtures" in path.parts:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if _FOREIGN.search(line) or _SECRET.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")
    assert not found, "\n".join(found)


def test_the_lock_holds_exact_versions_with_their_hashes_only():
    """So that no index can put another file in the place of one that was tested."""
    text = (ROOT / "requirements.lock").read_text()
    entry = re.compile(r"[a-z0-9][a-z0-9.-]*==[A-Za-z0-9.+!]+(?: ; [^\n]*)?(?: \\\n    --hash=sha256:[0-9a-f]{64})+")
    entries = re.split(r"\n(?! )", text.rstrip("\n"))
    assert [one for one in entries if not entry.fullmatch(one)] == []
    assert "--require-hashes -r requirements.lock" in (ROOT / "compose" / "make_venv.sh").read_text()


def test_the_lock_fulfils_the_project_s_own_demands():
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(r for extra in project["optional-dependencies"].values() for r in extra)]
    locked = dict(
        line.split(" ")[0].split("==")
        for line in (ROOT / "requirements.lock").read_text().splitlines()
        if line and line[0] != " "
    )
    for text in asked:
        wanted = Requirement(text)
        name = canonicalize_name(wanted.name)
        assert name in locked, f"{name} is not in requirements.lock"
        assert wanted.specifier.contains(locked[name]), f"{name} {locked[name]} is not {wanted.specifier}"


def test_an_installation_without_extras_has_what_pyspark_asks_for():
    """Its metadata does not name them; the environment of the tests has them from the embedded engine, too."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {re.split(r"[^\w-]", text, maxsplit=1)[0] for text in project["dependencies"]}
    assert {"pandas", "pyarrow"} <= named, "mapInArrow refuses to work without"


def test_top_level_is_as_designed():
    allowed = set(
        "pyproject.toml README.md Makefile LICENSE requirements.lock ch_sink sql tests compose benchmarks docs"
        " .gitignore .ci .dockerignore .github".split()
    )
    top = {path.relative_to(ROOT).parts[0] for path in tracked()}
    assert top <= allowed, f"unexpected at the top: {sorted(top - allowed)}"


def modules() -> list[str]:
    return sorted(m.name for m in pkgutil.walk_packages(ch_sink.__path__, "ch_sink.") if m.name != "ch_sink.__main__")


def test_every_module_imports_and_states_its_purpose():
    wrong = [name for name in modules() if not (importlib.import_module(name).__doc__ or "").strip()]
    assert not wrong, f"no docstring: {wrong}"


def test_the_package_s_public_names_are_pinned():
    assert ch_sink.__all__ == ["__version__"]
    assert importlib.import_module("ch_sink.config").__all__ == [
        "ClickHouseSection",
        "Config",
        "Expansion",
        "InitSection",
        "Job",
        "KafkaSection",
        "SparkSection",
        "TablesSection",
        "VersionSection",
        "expand",
        "load",
        "load_job",
        "load_rows",
    ]
    assert importlib.import_module("ch_sink.spark").__all__ == ["changes", "history", "sink"]
    assert importlib.import_module("ch_sink.cli").__all__ == ["main"]


def test_importing_the_core_loads_neither_spark_nor_clients():
    heavy = "[m for m in ('pyspark', 'chdb', 'confluent_kafka', 'clickhouse_connect') if m in sys.modules]"
    code = f"import sys\nimport ch_sink.pipeline.plan, ch_sink.pipeline.partition_sink\nprint({heavy})"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert shown.stdout.strip() == "[]"


@pytest.mark.long
@pytest.mark.slow
def test_the_wheel_holds_the_sql_templates_and_is_typed(tmp_path):
    built = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = tmp_path.glob("ch_sink-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "installed")
    templates = {path.name for path in (ROOT / "sql").glob("*.sql")}
    assert templates
    assert {f"ch_sink/sql/{name}" for name in templates} <= names
    assert {"ch_sink/py.typed", "pyspark_ch_sink.py"} <= names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]
    # The installed package finds its templates without the checkout.
    code = "from ch_sink.table import views as t; import ch_sink; print(ch_sink.__file__, len(t.template('ledger')))"
    shown = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path / "installed"), "PATH": ""},
    )
    assert str(tmp_path) in shown.stdout


@pytest.mark.parametrize(
    ("found", "code"), [(["17.0.1"], 0), (["1.8.0_392"], 1), (["11.0.2", "21.0.4"], 0), ([], 1)], ids=str
)
def test_java_is_found_by_its_version(tmp_path, found, code):
    """The script of the Makefile, among executables that only state a version."""
    script = (ROOT / "compose" / "java_home.sh").read_text()
    script = re.sub(
        r"/(usr/lib/jvm|usr/java|opt/java|opt/jdk\*|usr/local/opt|opt/homebrew|Library)", f"{tmp_path}/none", script
    )
    script = script.replace("/etc/debian_version", f"{tmp_path}/none")
    homes = []
    for number, version in enumerate(found):
        home = tmp_path / f"jdk{number}"
        (home / "bin").mkdir(parents=True)
        java = home / "bin" / "java"
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        java.chmod(0o755)
        homes.append(home)
    environment = {"PATH": f"{homes[-1] / 'bin'}:/tools" if homes else "/tools", "HOME": str(tmp_path)}
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "sed", "grep", "readlink", "dirname", "id"):
        place = subprocess.run(["which", name], capture_output=True, text=True, check=True).stdout.strip()
        (tools / name).symlink_to(place)
    environment["PATH"] = environment["PATH"].replace("/tools", str(tools))
    ran = subprocess.run(
        [str(tools / "bash"), "-c", script], capture_output=True, text=True, env=environment, check=False
    )
    assert ran.returncode == code, ran.stderr
    if code:
        assert "Java 17 or newer" in ran.stderr
        assert len(ran.stderr.strip().splitlines()) == 1
    else:
        assert ran.stdout.strip() == str(homes[-1])


def test_the_pages_name_tests_that_are_there():
    named = {
        (page.name, path)
        for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        for path in re.findall(r"\btests/[\w/]+(?:\.\w+)?", page.read_text(encoding="utf-8"))
    }
    assert ("testing.md", "tests/integration/test_recorded.py") in named
    assert sorted(place for place in named if not (ROOT / place[1]).exists()) == []
