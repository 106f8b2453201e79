"""The templates of ``sql/``: each is one statement with ``$name`` places (:class:`string.Template`).

Tables also know ``$replicated`` and ``$path``: ``ENGINE = ${replicated}ReplacingMergeTree(${path}_version)`` is right
either way.
"""

from functools import cache
from importlib.resources import files
from pathlib import Path
from string import Template

from ch_sink.errors import ChSinkError


@cache
def template(name: str) -> str:
    """The text of ``sql/<name>.sql``. Raises ChSinkError if the installation lacks it."""
    shipped = files("ch_sink").joinpath("sql", f"{name}.sql")
    if shipped.is_file():
        return shipped.read_text(encoding="utf-8")
    checkout = Path(__file__).resolve().parents[2] / "sql" / f"{name}.sql"
    if checkout.is_file():
        return checkout.read_text(encoding="utf-8")
    raise ChSinkError(f"the SQL template {name}.sql is not installed", hint="Install ch-sink again.")


def render(name: str, **values: str) -> str:
    """The template with its places filled: one statement, without a semicolon.

    Lines of the template that a place leaves empty disappear; values stay as they are, names with blank lines included.
    Raises ChSinkError, naming it, for a place without a value.
    """
    try:
        lines = [Template(line).substitute(values).rstrip() for line in template(name).splitlines()]
    except KeyError as missing:
        raise ChSinkError(f"sql/{name}.sql has the place ${missing.args[0]}, which has no value here") from None
    return "\n".join(line for line in lines if line).rstrip(";")
