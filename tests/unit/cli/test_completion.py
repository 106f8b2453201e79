"""Shell completion: the scripts complete commands, options and files in the shells that are installed."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

SHELLS = ("bash", "zsh", "fish")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Where `ch_sink` is a command, and the home is empty."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "HOME": str(tmp_path), "TERM": "dumb"}


def script(shell: str, environment: dict[str, str], folder: Path) -> Path:
    """The shell's script, as `ch_sink --show-completion` prints it."""
    shown = {**environment, "_CH_SINK_COMPLETE": f"source_{shell}"}
    printed = subprocess.run(["ch_sink"], env=shown, capture_output=True, text=True, check=True, timeout=60).stdout
    file = folder / f"completion.{shell}"
    file.write_text(printed)
    return file


def needs(shell: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_has_a_script_for_the_program_s_name(
    shell: str, environment: dict[str, str], tmp_path: Path
) -> None:
    text = script(shell, environment, tmp_path).read_text()
    assert "_CH_SINK_COMPLETE=complete_" + shell in text
    assert " ch_sink" in text


@pytest.mark.long
def test_bash_completes(environment: dict[str, str], tmp_path: Path) -> None:
    needs("bash")
    code = f"""
source {script("bash", environment, tmp_path)}
complete -p ch_sink
COMP_WORDS=(ch_sink sta) COMP_CWORD=1; _ch_sink_completion ch_sink; echo "${{COMPREPLY[@]}}"
COMP_WORDS=(ch_sink run --onc) COMP_CWORD=2; _ch_sink_completion ch_sink; echo "${{COMPREPLY[@]}}"
"""
    ran = subprocess.run(["bash", "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=60)
    registered, *completed = ran.stdout.split("\n")
    assert "-o default" in registered, "files complete where the program has nothing to offer"
    assert completed[:2] == ["status", "--once"]


def test_fish_completes(environment: dict[str, str], tmp_path: Path) -> None:
    needs("fish")
    (tmp_path / "orders.yaml").touch()
    wanted = ("ch_sink sta", "ch_sink run --onc", "ch_sink run ord")
    code = f"source {script('fish', environment, tmp_path)};" + ";".join(f"complete -C '{line}'" for line in wanted)
    ran = subprocess.run(
        ["fish", "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=60, cwd=tmp_path
    )
    assert [line.split("\t")[0] for line in ran.stdout.splitlines()] == ["status", "--once", "orders.yaml"]


def test_zsh_completes(environment: dict[str, str], tmp_path: Path) -> None:
    needs("zsh")
    file = script("zsh", environment, tmp_path)
    process, terminal = pty.fork()
    if process == 0:
        os.execvpe("zsh", ["zsh", "-f", "-i"], environment)
    try:
        _type(terminal, f"autoload -Uz compinit; compinit -u -D; source {file}; echo re''ady\n", "ready")
        _type(terminal, "ch_sink sta\t", "status")
        _type(terminal, " --wat\t", "--watch")
    finally:
        os.close(terminal)
        os.waitpid(process, 0)


def _type(terminal: int, keys: str, shown: str) -> None:
    """Type into the shell and wait until the terminal shows this text."""
    os.write(terminal, keys.encode())
    seen, deadline = "", time.monotonic() + 60
    while shown not in seen:
        assert time.monotonic() < deadline, seen
        if select.select([terminal], [], [], 0.2)[0]:
            seen += os.read(terminal, 4096).decode(errors="replace")
