"""Arguments and options that several commands share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ch_sink.errors import ConfigError

if TYPE_CHECKING:
    from ch_sink.config import Config

__all__ = ["AsJson", "ConfigFile", "ConfigFiles", "Overrides", "load_all"]

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="The stream's YAML file.", show_default=False)]
ConfigFiles = Annotated[
    list[Path], typer.Argument(metavar="CONFIG", help="The streams' YAML files, one per topic.", show_default=False)
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, e.g. clickhouse.table=orders. May be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def load_all(paths: list[Path], overrides: list[str] | None) -> "list[Config]":
    """The configurations of all files.

    Raises ConfigError if one is wrong, or if two of them share a stream name or checkpoint.
    """
    # Imported here: help and completion do not need it, and it takes half a second.
    from ch_sink.config import load

    configs = [load(path, overrides or ()) for path in paths]
    for what, values in (
        ("stream name", [c.stream_name for c in configs]),
        ("checkpoint", [c.checkpoint for c in configs]),
    ):
        for place, value in enumerate(values):
            if value in values[:place]:
                first = paths[values.index(value)]
                raise ConfigError(
                    f"{first} and {paths[place]} have the same {what}, {value}",
                    hint="Each stream needs a name and a checkpoint of its own.",
                )
    return configs
