"""The command line: one module per command; everything is printed through one Output."""

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry of ``ch_sink``; leaves by SystemExit. Imported late: Spark workers import this package's parent."""
    from ch_sink.cli.app import main as entry

    entry(arguments)
