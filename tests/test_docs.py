"""What the documentation says of the code is in the code."""

import ast
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
_QUOTED = re.compile(r"^\| `([^`]+)` \|", re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?://)([^)#\s]+)(?:#[^)]*)?\)")


@cache
def messages() -> str:
    """All string literals of the product, joined as written, with … for what an f-string fills in; NUL between them."""
    found: list[str] = []
    for path in sorted((ROOT / "ch_sink").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(str(v.value) if isinstance(v, ast.Constant) else "…" for v in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\0".join(found)


def quoted() -> list[str]:
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    return [found for found in _QUOTED.findall(text) if " " in found]


@pytest.mark.parametrize("message", quoted())
def test_every_message_of_the_troubleshooting_page_is_one_of_the_product(message: str) -> None:
    assert re.search(r"[^\0]*".join(re.escape(part.strip()) for part in message.split("…")), messages())


@pytest.mark.parametrize("page", sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]), ids=lambda p: p.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    broken = [link for link in _LINK.findall(page.read_text(encoding="utf-8")) if not (page.parent / link).exists()]
    assert not broken


def test_the_site_builds_and_no_link_in_it_leads_nowhere(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "-f",
        str(ROOT / "compose" / "mkdocs.yml"),
    ]
    environ = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run([*command, "-d", str(tmp_path)], env=environ, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    assert not re.findall(
        r'(?:src|href)="(https?://(?!zensical|squidfunk)[^"]+\.(?:js|css|woff2?))"',
        (tmp_path / "index.html").read_text(),
    )
    # A fence that the site does not recognise, as in a list that is not indented by four.
    assert not [page.name for page in tmp_path.rglob("*.html") if "```" in page.read_text(encoding="utf-8")]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_unit_of_the_operations_page(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    [unit] = re.findall(r"^```ini\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    program = "/opt/ch_sink/bin/ch_sink"
    assert program in unit
    file = tmp_path / "ch_sink@shop.service"
    file.write_text(unit.replace(program, "/bin/true"))
    command = ["systemd-analyze", "verify", "--man=no", str(file)]
    verified = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")


@pytest.mark.parametrize(
    "page",
    ["architecture.md", "CONTRIBUTING.md", *sorted(f"internals/{p.name}" for p in (ROOT / "docs/internals").iterdir())],
)
def test_files_that_a_page_names_exist(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    named = re.findall(r"`((?:ch_sink|tests|sql|docs|[a-z]+)/[a-z0-9_/]+\.(?:py|sql|md))`", text)
    missing = [name for name in named if not any((base / name).exists() for base in (ROOT, ROOT / "ch_sink"))]
    assert named
    assert not missing
