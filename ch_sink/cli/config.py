"""``ch_sink config``: an example of a configuration file, and its JSON Schema."""

import typer

from ch_sink.cli.output import Output

__all__ = ["config"]

config = typer.Typer(
    name="config",
    help="Print an example of a configuration file, or its JSON Schema.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@config.command()
def example() -> None:
    """Print a commented configuration file."""
    from ch_sink.config.schema import EXAMPLE

    Output().sql(EXAMPLE)


@config.command()
def schema() -> None:
    """Print the JSON Schema of configuration files, for editors."""
    from ch_sink.config.schema import json_schema

    Output(as_json=True).document(json_schema())
