"""Secrets from files: ``password_file: /run/secrets/clickhouse`` in the place of ``password``."""

from pathlib import Path
from typing import Any

from ch_sink.config.properties import SECRETS
from ch_sink.config.tree import Tree
from ch_sink.errors import ConfigError

__all__ = ["SECRET_KEYS", "read_secret_files"]

SECRET_KEYS = SECRETS | {"password", "http_proxy", "mask_key"}
"""Keys whose values may be in a file of their own."""
_SUFFIX = "_file"


def read_secret_files(tree: Tree) -> None:
    """Replace each key such as ``password_file`` by ``password`` with the content of the file.

    A line break at the end of the file does not belong to the secret. Raises ConfigError if a file cannot be read, or
    if the secret is given as well.
    """
    _read(tree, tree.values, ())


def _read(tree: Tree, node: Any, path: tuple[str, ...]) -> None:
    if isinstance(node, list):
        for place, item in enumerate(node):
            _read(tree, item, (*path, str(place)))
    if not isinstance(node, dict):
        return
    for name, value in list(node.items()):
        secret = str(name).removesuffix(_SUFFIX)
        if secret == name or secret not in SECRET_KEYS:
            _read(tree, value, (*path, str(name)))
            continue
        here = (*path, str(name))
        where = f"{tree.name} {tree.where(here)}: {'.'.join(here)}"
        if node.get(secret):
            raise ConfigError(f"{where}: {secret} is given as well", hint="Keep one of them.")
        node[secret] = _content(where, str(value))
        tree.origin[(*path, secret)] = tree.where(here)
        del node[name]


def _content(where: str, file: str) -> str:
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(
            f"{where} cannot be read: {file}: {reason}", hint="Give the path of a file that this user may read."
        ) from None
    return text.removesuffix("\n").removesuffix("\r")
